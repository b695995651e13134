"""What a run costs, as six quantities that are never merged (docs/paper.md sections 1 and 5).

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
from typing import Any


@dataclass
class Ledger:
    """Seconds of one training process by phase, kept across interruptions."""

    seconds: dict[str, float] = field(default_factory=dict)
    sessions: list[list[float]] = field(default_factory=list)
    """Wall-clock start and last sign of life of every process that worked on this, seconds since the epoch."""
    marks: dict[int, dict[str, float]] = field(default_factory=dict)
    """Seconds by phase up to each milestone."""
    processor: dict[str, float] = field(default_factory=dict)
    """Seconds by phase that this process's threads ran on a processor: fewer where something else ran beside them."""
    _began: float = 0.0
    """Monotonic clock at the start of this process's session."""

    def begin(self) -> None:
        """A process starts to work. Its session is as long as the monotonic clock says: the other one may be set."""
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
        """Remember the seconds at a milestone."""
        self.marks[update] = dict(self.seconds)

    def to_json(self) -> dict[str, Any]:
        marks = {str(update): seconds for update, seconds in self.marks.items()}
        return {"seconds": self.seconds, "processor": self.processor, "sessions": self.sessions, "marks": marks}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Ledger:
        marks = {int(update): seconds for update, seconds in value["marks"].items()}
        return cls(dict(value["seconds"]), [list(s) for s in value["sessions"]], marks, dict(value["processor"]))


def aggregate_device_seconds(parts: Sequence[Ledger], devices: Sequence[int], update: int) -> float:
    """Sum over devices of the time inside recorded updates up to a milestone, communication and waiting included.

    Args:
        devices: how many devices worked on each part at once; all are charged for all of its time.
    """
    return sum(n * part.marks[update]["update"] for part, n in zip(parts, devices, strict=True))


def whole_job_seconds(parts: Sequence[Ledger], devices: Sequence[int]) -> float:
    """Sum over devices of all the time that jobs ran: start, reading, validation and saving included."""
    return sum(n * (end - start) for part, n in zip(parts, devices, strict=True) for start, end in part.sessions)


def processor_share(parts: Sequence[Ledger], threads: int) -> float:
    """Share of the processors of its threads that the recorded updates had; below 1 where something else ran beside.

    It says nothing about work on a GPU, which needs little of a processor.
    """
    seconds = sum(part.seconds.get("update", 0.0) for part in parts)
    return sum(part.processor.get("update", 0.0) for part in parts) / (threads * seconds) if seconds else 1.0


def idealised_elapsed_seconds(parts: Sequence[tuple[Ledger, int]], update: int) -> float:
    """Recorded updates of the slowest expert, with a part's time divided evenly over its (number of) experts."""
    return max(part.marks[update]["update"] / experts for part, experts in parts)


def actual_elapsed_seconds(parts: Sequence[Ledger]) -> float:
    """From the first start to the last end, by the machine's clock; includes whatever else it did between.

    A clock that was set back between two sessions cannot make it shorter than the longest of them.
    """
    sessions = [session for part in parts for session in part.sessions]
    span = max(end for _, end in sessions) - min(start for start, _ in sessions)
    return max(span, *(end - start for start, end in sessions))
