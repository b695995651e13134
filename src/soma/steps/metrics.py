"""The step `metrics`: the numbers that `dvc metrics` shows."""

from __future__ import annotations

from pathlib import Path

from soma.analysis.reading import load, load_plan
from soma.catalogue import METRICS
from soma.files.atomic import write_json
from soma.report.metrics import collect


def metrics(settings: Path, results: Path, output: Path) -> None:
    """Write losses, differences and verdicts of a campaign as JSON."""
    plan = load_plan(settings)
    write_json(output, collect(plan, *load(METRICS, plan, results)))
