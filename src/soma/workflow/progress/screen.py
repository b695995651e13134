"""Where a run is shown: plain lines for a file or pipe, and bars that move for a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

from soma.workflow.progress.tally import Jobs, Tally, counted, duration

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

_EVERY = 60.0
"""Seconds between two lines about the whole run, where there is no terminal."""


class Lines:
    """Plain lines: one for each rule that is complete, and one about the whole run per minute."""

    def __init__(self, stream: TextIO) -> None:
        """Print to a stream."""
        self._stream = stream
        self._tally: Tally | None = None
        self._last = 0.0

    def line(self, text: str, style: str = "") -> None:
        """Print a text; the style is for terminals."""
        print(text, file=self._stream, flush=True)

    def begin(self, tally: Tally, now: float) -> None:
        """Show a run from now on."""
        self._tally, self._last = tally, now
        self.line(f"{tally.total} jobs of {len(tally.rules)} rules")

    def complete(self, rule: str, jobs: Jobs, now: float) -> None:
        """Say that all jobs of a rule are done."""
        self.line(_completed(rule, jobs))

    def update(self, now: float) -> None:
        """Say how far the run is, if that was not said for a minute."""
        if self._tally is not None and now - self._last >= _EVERY and self._tally.done < self._tally.total:
            self._last = now
            self.line(f"{_summary(self._tally, now)}; running: {_running(self._tally)}")

    def stop(self) -> None:
        """End the show of a run."""


class Screen:
    """A terminal: complete rules scroll away, rules that run have bars below them, and the last line is the total."""

    def __init__(self, stream: TextIO, color: bool) -> None:
        """Print to a terminal, with colours or without."""
        from rich.console import Console

        self._console = Console(file=stream, no_color=not color, highlight=False, soft_wrap=True)
        self._tally: Tally | None = None
        self._live: Live | None = None

    def line(self, text: str, style: str = "") -> None:
        """Print a text above the bars."""
        self._console.print(text, style=style or None, markup=False)

    def begin(self, tally: Tally, now: float) -> None:
        """Show a run from now on."""
        from rich.live import Live

        self._tally = tally
        # What Python prints in this process goes above the bars as well.
        self._live = Live(get_renderable=self._bars, console=self._console, refresh_per_second=2, transient=True)
        self._live.start()

    def complete(self, rule: str, jobs: Jobs, now: float) -> None:
        """Say that all jobs of a rule are done."""
        self.line(_completed(rule, jobs))

    def update(self, now: float) -> None:
        """Do nothing: the bars move by themselves."""

    def stop(self) -> None:
        """End the show of a run."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _bars(self) -> Group:
        """Return the rules that run, and the total."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        assert self._tally is not None
        rules: Any = Table.grid(padding=(0, 1))
        for rule, jobs in list(self._tally.rules.items()):
            if jobs.started:
                bar = ProgressBar(total=jobs.total, completed=jobs.done, width=24)
                rules.add_row(rule, bar, f"{jobs.done}/{jobs.total}", f"{len(jobs.started)} running")
        return Group(rules, Text(_summary(self._tally, time.time()), style="bold", no_wrap=True, overflow="ellipsis"))


def _completed(rule: str, jobs: Jobs) -> str:
    number = f"{jobs.done} job{'s' if jobs.done > 1 else ''}"
    return f"{rule:24} {number:>9}, {duration(sum(jobs.took))}"


def _running(tally: Tally) -> str:
    return counted(rule for rule, jobs in tally.rules.items() for _ in jobs.started) or "none"


def _summary(tally: Tally, now: float) -> str:
    """Return how far a run is: jobs, elapsed and left."""
    words = f"{tally.done} of {tally.total} jobs, {duration(now - tally.began)} elapsed"
    if (left := tally.left(now)) is not None:
        seconds, known = left
        if not known and seconds < 1:
            return words
        words += f", {'about' if known else 'at least'} {duration(seconds)} left"
    return words
