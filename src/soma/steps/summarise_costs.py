"""The step `summarise-costs`: the six cost quantities of every run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from soma.analysis.costs import run_costs
from soma.analysis.reading import load_plan
from soma.files.atomic import read_json
from soma.files.tables import write_rows
from soma.runs import RunSpec


def summarise_costs(settings: Path, runs: Path, benchmarks: Sequence[Path], output: Path) -> None:
    """Write the costs of every run of the campaign as Parquet.

    Args:
        settings: settings of the whole campaign.
        runs: folder of all runs.
        benchmarks: Snakemake's benchmark files of the preprocessing rules.
    """
    plan = load_plan(settings)

    def parts(run: RunSpec) -> dict[str, dict[str, object]]:
        return {part: read_json(runs / run.id / part / "cost.json") for part in plan.parts(run)}

    seconds = sum(float(pd.read_csv(path, sep="\t")["s"].sum()) for path in benchmarks)
    write_rows(output, run_costs(plan, {run.id: parts(run) for run in plan.runs.values()}, seconds))
