"""The step `metrics`: the numbers that pages quote, and those that `dvc metrics` shows."""

from __future__ import annotations

from pathlib import Path

from soma.analysis.reading import load, load_plan
from soma.catalogue import METRICS
from soma.files.atomic import write_json
from soma.report.metrics import collect, headline


def metrics(settings: Path, results: Path, numbers: Path, output: Path) -> None:
    """Write losses, differences and verdicts of a campaign as JSON: all as `numbers`, and a few of them as `output`."""
    plan = load_plan(settings)
    losses, judged_claims, *others = load(METRICS, plan, results)
    collected = collect(plan, losses, judged_claims, *others)
    write_json(numbers, collected)
    write_json(output, headline(plan, collected, judged_claims))
