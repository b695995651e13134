"""The step `metrics`: the numbers that `dvc metrics` shows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from soma.analysis.evidence import evidence
from soma.files.atomic import write_json
from soma.report.metrics import metrics
from soma.steps.summarise import load_plan


def write_metrics(settings: Path, measurements: Path, output: Path) -> None:
    """Write losses, differences and verdicts of a campaign as JSON."""
    plan = load_plan(settings)

    def rows(kind: str) -> pd.DataFrame:
        return pd.read_parquet(measurements / f"{kind}.parquet")

    write_json(output, metrics(plan, rows("losses"), evidence(plan, rows), rows("controls"), rows("sizes")))
