"""The jobs of a campaign with what each asks for, as Snakemake would submit them under a profile."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from soma.errors import SomaError

_CORES = 1024
"""More cores than a node has."""


@dataclass(frozen=True)
class Job:
    """A job that is still to be run."""

    rule: str
    wildcards: dict[str, str]
    threads: int
    resources: Any
    """Snakemake's own, with `get` and attributes; `mem_mb` in megabytes and `runtime` in minutes."""

    def number(self, name: str) -> int:
        """Return a resource that is a number, 0 where the job has none."""
        value = self.resources.get(name)
        return value if isinstance(value, int) else 0

    @property
    def gpus(self) -> int:
        return self.number("gpu")


def planned_jobs(configfile: Sequence[Path], profile: Path | None) -> list[Job]:
    """Return the jobs of a dry run, from the events that Snakemake logs for its plugins.

    Raises:
        SomaError: if Snakemake cannot plan the campaign, or the executor is not there.
    """
    from snakemake.cli import main
    from snakemake.logging import logger

    jobs: list[Job] = []
    errors: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        """Keep what a record tells; print none."""
        fields = vars(record)
        if fields.get("event") == "job_info":
            wildcards = {name: str(value) for name, value in dict(fields["wildcards"]).items()}
            jobs.append(Job(fields["rule_name"], wildcards, fields["threads"], fields["resources"]))
        elif record.levelno >= logging.ERROR:
            errors.append(" ".join(record.getMessage().split()))
        return False

    # A dry run has one core unless it is told otherwise, and would cut threads to it, as no cluster does.
    cores = _CORES if profile else os.cpu_count() or 1
    words = ["--dry-run", "--cores", str(cores), *(["--workflow-profile", str(profile)] if profile else [])]
    words += ["--configfile", *map(str, configfile)] if configfile else []
    logger.addFilter(note)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as text:
            main(words)
    except SystemExit as end:
        if end.code:
            why = errors[0] if errors else " ".join(text.getvalue().split()) or "it does not say why"
            raise SomaError(f"Snakemake cannot plan the campaign: {why}") from None
    finally:
        logger.removeFilter(note)
    return jobs
