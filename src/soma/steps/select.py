"""The test of what the tuning chose: apart from other steps, since it depends on the whole plan."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch

from soma.analysis.tuning import chosen_runs
from soma.config import Config
from soma.evaluate import open_set
from soma.forward.engine import create
from soma.manifest import atomic_path, read_json
from soma.plan import make_plan
from soma.settings.training import Compute
from soma.steps.evaluate import evaluate_entries
from soma.steps.published import Routers


def evaluate_chosen(
    settings: Path, tuning: Path, windows: Path, runs: Path, routing: Path, output: Path, compute: Path, threads: int
) -> None:
    """Test losses of the runs that the tuning chose, and of no other, as Parquet.

    Args:
        settings: the whole campaign.
        tuning: rows of `analysis.tuning.search`.
        runs, routing: folders of all runs, and of features and routers.
    """
    torch.set_num_threads(threads)
    how = Compute.model_validate(read_json(compute))
    plan = make_plan(Config.model_validate(read_json(settings)))
    chosen = chosen_runs(plan, pd.read_parquet(tuning))
    entries = [plan.published(plan.runs[run]) | {"active": [plan.arms[arm].active]} for run, arm in chosen]
    engine = create(how.engine, how.device)
    rows = evaluate_entries(entries, runs, Routers(routing), open_set("test", windows), engine)
    with atomic_path(output) as path:
        rows.to_parquet(path, index=False)
