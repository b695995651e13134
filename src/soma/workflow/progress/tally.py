"""Jobs of a run by rule: how many are done, how long they took, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean


@dataclass
class Jobs:
    """Jobs of one rule."""

    total: int = 0
    started: dict[int, float] = field(default_factory=dict)
    """Start of each running job by its number; seconds on the caller's clock, as are all times here."""
    took: list[float] = field(default_factory=list)
    """Seconds that each finished job took."""

    @property
    def done(self) -> int:
        """Number of finished jobs."""
        return len(self.took)

    @property
    def complete(self) -> bool:
        """Whether no job is left."""
        return self.done >= self.total and not self.started


class Tally:
    """Jobs of a run, which its events keep up to date."""

    def __init__(self, totals: Mapping[str, int], now: float) -> None:
        """Count the jobs of a run that begins.

        Args:
            totals: number of jobs by rule.
            now: time of the start.
        """
        self.began = now
        self.rules = {rule: Jobs(total) for rule, total in totals.items()}
        self._rule_of: dict[int, str] = {}

    def start(self, job: int, rule: str, now: float) -> None:
        """Note that a job was started, perhaps once more."""
        self._rule_of[job] = rule
        self.rules.setdefault(rule, Jobs(1)).started[job] = now

    def finish(self, job: int, now: float) -> Jobs | None:
        """Note that a job has finished, and return the jobs of its rule; None if its start is not known."""
        if (rule := self._rule_of.get(job)) is None:
            return None
        jobs = self.rules[rule]
        jobs.took.append(now - jobs.started.pop(job, now))
        return jobs

    def rule_of(self, job: int) -> str:
        """Return the rule of a job that was started."""
        return self._rule_of[job]

    def fail(self, job: int) -> None:
        """Note that a job has failed: it no longer runs."""
        if rule := self._rule_of.get(job):
            self.rules[rule].started.pop(job, None)

    @property
    def done(self) -> int:
        """Number of finished jobs."""
        return sum(jobs.done for jobs in self.rules.values())

    @property
    def total(self) -> int:
        """Number of all jobs."""
        return sum(jobs.total for jobs in self.rules.values())

    def left(self, now: float) -> tuple[float, bool] | None:
        """Estimate the seconds that the rest will take.

        A job is expected to take as long as the finished ones of its rule did on average, and as many jobs to run at
        the same time as so far.

        Returns:
            The seconds, and whether a job of every rule has finished; if not, they are what is known at least. None
            before the first job has finished.
        """
        spent = sum(
            sum(jobs.took) + sum(now - start for start in jobs.started.values()) for jobs in self.rules.values()
        )
        if not self.done or spent <= 0:
            return None
        work, known = 0.0, True
        for jobs in self.rules.values():
            waiting = jobs.total - jobs.done - len(jobs.started)
            if not jobs.took:
                known &= not (waiting or jobs.started)
                continue
            each = fmean(jobs.took)
            work += each * max(waiting, 0) + sum(max(each - (now - start), 0) for start in jobs.started.values())
        together = max(spent / max(now - self.began, 1e-9), 1.0)
        return work / together, known

    def shares(self, most: int) -> list[tuple[str, float, float]]:
        """Return rule, seconds and share of all jobs' time, largest first.

        Rules beyond `most` are one entry, `others`, at the end.
        """
        seconds = {rule: sum(jobs.took) for rule, jobs in self.rules.items()}
        total = sum(seconds.values())
        if total <= 0:
            return []
        ordered = sorted(seconds.items(), key=lambda item: -item[1])
        rest = sum(spent for _, spent in ordered[most:])
        shown = [*ordered[:most], *([("others", rest)] if rest > 0 else [])]
        return [(rule, spent, spent / total) for rule, spent in shown]


def duration(seconds: float) -> str:
    """Return a duration in at most two units: `42 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    whole = round(seconds)
    sizes = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for unit, size in sizes:
        count, whole = divmod(whole, size)
        if count or (parts and whole):
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 ")) or "0 s"


def counted(words: Iterable[str]) -> str:
    """Return words with their numbers, in the order of their first: `train 2, evaluate`."""
    numbers: dict[str, int] = {}
    for word in words:
        numbers[word] = numbers.get(word, 0) + 1
    return ", ".join(f"{word} {n}" if n > 1 else word for word, n in numbers.items())
