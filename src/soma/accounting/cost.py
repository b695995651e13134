"""The cost of a run, as six quantities that are never merged (docs/paper.md sections 1 and 5).

- *arithmetic operations*: counted exactly, the same on any machine; comparisons at equal budget use them;
- *aggregate device time*: the time of all devices inside recorded updates, waiting included;
- *idealised elapsed time*: one device per expert, all at once: the slowest expert's recorded updates;
- *actual elapsed time*: from the first start to the last end of a run's jobs on the machine that ran them;
- *initialisation*: the seed run that the experts start from;
- *preprocessing*: corpus, features, clusters and shards.

Validation, evaluation and saving are outside aggregate device time, as in the paper.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soma.config.base import Record, read_as


class _Ledger(Record):
    seconds: dict[str, float]


class _Cost(Record):
    ledger: _Ledger


def update_seconds(cost: Path) -> float:
    """Return the seconds that a part's `cost.json` records for its updates.

    Raises:
        SomaError: if the file is missing or damaged.
    """
    return read_as(_Cost, cost).ledger.seconds.get("update", 0.0)


@dataclass
class Ledger:
    """Seconds that one training process spent in each phase, kept across interruptions."""

    seconds: dict[str, float] = field(default_factory=dict)
    sessions: list[list[float]] = field(default_factory=list)
    """Wall-clock start and last activity of every process that worked on this, in seconds since the epoch."""
    marks: dict[int, dict[str, float]] = field(default_factory=dict)
    """Seconds by phase up to each milestone."""
    processor: dict[str, float] = field(default_factory=dict)
    """Processor seconds of this process's threads by phase; less than `seconds` where other programs competed."""
    _began: float = 0.0
    """Monotonic clock at the start of this process's session."""

    def begin(self) -> None:
        """Start a session of this process; its length follows the monotonic clock, since the wall clock may be
        adjusted.
        """
        self.sessions.append([time.time()] * 2)
        self._began = time.monotonic()

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the block's duration to a phase (monotonic clock)."""
        started, processor = time.monotonic(), time.process_time()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - started
        self.processor[phase] = self.processor.get(phase, 0.0) + time.process_time() - processor
        if self.sessions:
            self.sessions[-1][1] = self.sessions[-1][0] + time.monotonic() - self._began

    def mark(self, update: int) -> None:
        """Record the seconds spent up to a milestone."""
        self.marks[update] = dict(self.seconds)

    def to_json(self) -> dict[str, Any]:
        marks = {str(update): seconds for update, seconds in self.marks.items()}
        return {"seconds": self.seconds, "processor": self.processor, "sessions": self.sessions, "marks": marks}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Ledger:
        marks = {int(update): seconds for update, seconds in value["marks"].items()}
        return cls(dict(value["seconds"]), [list(s) for s in value["sessions"]], marks, dict(value["processor"]))


def aggregate_device_seconds(parts: Sequence[Ledger], devices: Sequence[int], update: int) -> float:
    """Sum the time inside recorded updates up to a milestone over devices, including communication and waiting.

    Args:
        devices: how many devices worked on each part at once; all are charged for all of its time.
    """
    return sum(n * part.marks[update]["update"] for part, n in zip(parts, devices, strict=True))


def whole_job_seconds(parts: Sequence[Ledger], devices: Sequence[int]) -> float:
    """Sum all the time that jobs ran over devices, including start, reading, validation and saving."""
    return sum(n * (end - start) for part, n in zip(parts, devices, strict=True) for start, end in part.sessions)


def processor_share(parts: Sequence[Ledger], threads: int) -> float:
    """Return the processor time of the recorded updates as a share of what their threads could have used.

    It is below 1 where other programs competed. It says nothing about work on a GPU, which needs little processor time.
    """
    seconds = sum(part.seconds.get("update", 0.0) for part in parts)
    return sum(part.processor.get("update", 0.0) for part in parts) / (threads * seconds) if seconds else 1.0


def idealised_elapsed_seconds(parts: Sequence[tuple[Ledger, int]], update: int) -> float:
    """Return the time of the slowest expert's recorded updates; a part's time is divided evenly over its experts."""
    return max(part.marks[update]["update"] / experts for part, experts in parts)


def actual_elapsed_seconds(parts: Sequence[Ledger]) -> float:
    """Return the wall-clock time from the first start to the last end, including any other work in between.

    It is never shorter than the longest session, even if the clock was set back between two sessions.
    """
    sessions = [session for part in parts for session in part.sessions]
    span = max(end for _, end in sessions) - min(start for start, _ in sessions)
    return max(span, *(end - start for start, end in sessions))
