"""Snakemake's events as a few lines: in a terminal rules with bars, elsewhere plain lines without escape codes.

Who asks for more or less (`--quiet`, `--verbose`, `--debug-dag`) gets Snakemake's own lines. Its log, below
.snakemake/log, has everything in any case.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections import Counter
from logging import ERROR, LogRecord
from pathlib import Path
from typing import Any

from snakemake.logging import ColorizingTextHandler, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from soma.workflow.progress.screen import Lines, Screen
from soma.workflow.progress.tally import Tally, duration

_LAST = 20
"""Lines of a failed job's log that are shown."""
_LARGEST = 4
"""Rules that are named at the end of a run with the time that their jobs took."""
_ROUTINE = (
    "host: ",
    "Building DAG of jobs",
    "Assuming unrestricted shared filesystem",
    "Using shell: ",
    "Select jobs to execute",
    "Execute ",
    "Reasons:",
    "Removing output files of failed job",
    "Shutting down, this might take some time",
    "Exiting because a job execution failed",
    "WorkflowError:\nAt least one job did not complete successfully",
    "Some jobs were triggered by provenance",
    "Rules with provenance triggered jobs",
    "Complete log(s): ",
    "Elapsed time: ",
    "SLURM run ID: ",
    "This was a dry-run",
)
"""Beginnings of messages that say nothing new; messages of plugins for clusters stand in Snakemake's log too."""
_SUBMITTED = re.compile(r"Job \d+ has been submitted with SLURM jobid")


class LogHandler(LogHandlerBase):
    """Snakemake's plugin `soma`."""

    def __post_init__(self) -> None:
        """Print where Snakemake itself would: a plan to standard output, all else to standard error."""
        asked = self.common_settings
        stream = sys.stdout if asked.stdout else sys.stderr
        self._own: ColorizingTextHandler | None = None
        if asked.quiet or asked.verbose or asked.debug_dag:
            words = DefaultFormatter(asked.quiet, asked.show_failed_logs)
            self._own = ColorizingTextHandler(asked.nocolor, stream, formatter=words)
        terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._out = Screen(stream, not asked.nocolor) if terminal else Lines(stream)
        self._tally: Tally | None = None
        self._planned: dict[str, int] | None = None
        self._why: dict[str, Counter[str]] = {}
        self._names: dict[int, str] = {}
        self._shown: set[int] = set()
        self._overlays = ""
        self._status = ""

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def emit(self, record: LogRecord) -> None:
        """Print what an event changes, if anything."""
        if self._own is not None:
            self._own.emit(record)
            return
        fields = vars(record)
        try:
            match fields.get("event"):
                case LogEvent.WORKFLOW_STARTED:
                    files = fields.get("configfiles") or []
                    paths = re.findall(r"[^\s,'\[\]]+", files) if isinstance(files, str) else files
                    self._overlays = shlex.join(os.path.relpath(path) for path in paths)
                case LogEvent.RUN_INFO:
                    self._begin(dict(fields["stats"]), record.created)
                case LogEvent.JOB_INFO:
                    self._start(fields, record.created)
                case LogEvent.JOB_FINISHED:
                    self._finish(fields["job_id"], record.created)
                case LogEvent.JOB_ERROR:
                    self._fail(fields)
                case LogEvent.PROGRESS | LogEvent.JOB_STARTED | LogEvent.RESOURCES_INFO | LogEvent.RULEGRAPH:
                    pass
                case LogEvent.SHELLCMD:
                    if command := fields.get("shellcmd"):
                        self._out.line(str(command))
                case _:
                    self._say(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Print the end of a run, or a plan."""
        if self._planned is not None and self.common_settings.dryrun:
            self._plan(self._planned)
            self._planned = None
        self._out.stop()
        super().close()

    def _begin(self, stats: dict[str, int], now: float) -> None:
        totals = {rule: n for rule, n in stats.items() if rule != "total"}
        if self.common_settings.dryrun:
            self._planned = totals
        elif self._tally is None:
            self._tally = Tally(totals, now)
            self._out.begin(self._tally, now)

    def _start(self, fields: dict[str, Any], now: float) -> None:
        job, rule = fields["jobid"], fields["rule_name"]
        values = ", ".join(f"{name}={value}" for name, value in dict(fields.get("wildcards") or {}).items())
        self._names[job] = f"{rule} ({values})" if values else rule
        self._shown.discard(job)
        reasons = [words.partition(":")[0].rstrip(".") for words in str(fields.get("reason") or "").split("; ")]
        # That another job updates an input is said by the line of that job.
        own = [reason for reason in reasons if reason != "Input files updated by another job"]
        self._why.setdefault(rule, Counter())[(own or reasons)[0]] += 1
        if self._tally is not None:
            self._tally.start(job, rule, now)
            self._out.update(now)

    def _finish(self, job: int, now: float) -> None:
        if self._tally is None or (jobs := self._tally.finish(job, now)) is None:
            return
        rule = self._tally.rule_of(job)
        if jobs.complete:
            self._out.complete(rule, jobs, now)
        self._out.update(now)
        if self._tally.done == self._tally.total:
            self._out.stop()
            shares = [f"{name} {duration(spent)} ({share:.0%})" for name, spent, share in self._tally.shares(_LARGEST)]
            number = f"{self._tally.total} job{'s' if self._tally.total > 1 else ''}"
            self._out.line(f"{number} done in {duration(now - self._tally.began)}", style="bold green")
            if shares:
                self._out.line(f"where the jobs' time went: {', '.join(shares)}")

    def _fail(self, fields: dict[str, Any]) -> None:
        job = fields["jobid"]
        if self._tally is not None:
            self._tally.fail(job)
        if job in self._shown:
            return
        self._shown.add(job)
        name = self._names.get(job, fields["rule_name"])
        self._out.line(f"failed: {name}{self._status}", style="bold red")
        self._status = ""
        logs = [Path(path) for path in map(_bare, fields.get("log") or []) if Path(path).is_file()]
        for log in logs:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            if lines:
                self._out.line("\n".join(f"  {line}" for line in lines[-_LAST:]))
                self._out.line(f"  (the end of {log})")
                return
        if fields.get("rule_msg"):
            self._out.line(str(fields["rule_msg"]))
        self._out.line("  it wrote no message" + (f" to {logs[0]}" if logs else ""))

    def _say(self, record: LogRecord) -> None:
        if getattr(record, "event", None) == LogEvent.ERROR and (status := _exit_status(str(record.msg))):
            self._status = status  # the job's own words follow
            return
        text = self.format(record)
        if not text or text == "None" or text.startswith(_ROUTINE) or _SUBMITTED.search(text):
            return
        self._out.line(text, style="bold red" if record.levelno >= ERROR else "")

    def _plan(self, planned: dict[str, int]) -> None:
        width = max(map(len, (*planned, "total")))
        self._out.line(f"{'rule':{width}}   jobs  why")
        for rule, number in planned.items():
            why = self._why.get(rule, Counter()).most_common()
            reasons = "; ".join(reason if n == number else f"{reason} ({n})" for reason, n in why)
            self._out.line(f"{rule:{width}} {number:6}  {reasons[:1].lower()}{reasons[1:]}")
        self._out.line(f"{'total':{width}} {sum(planned.values()):6}")
        overlays = f" --configfile {self._overlays}" if self._overlays else ""
        self._out.line(f"Operations, device-hours and disk: soma plan{overlays}; the jobs' commands: add -p")


def _exit_status(text: str) -> str:
    """Return the exit status of a shell command that failed, for the line of its job."""
    known = re.search(r"returned non-zero exit status (\d+)", text)
    return f", exit status {known[1]}" if known else ""


def _bare(path: str) -> str:
    """Return a file without what Snakemake writes behind it, such as ` (check log file(s) for error details)`."""
    return path.partition(" (")[0]
