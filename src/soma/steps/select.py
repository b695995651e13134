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
from soma.routing.features import Features
from soma.routing.router import Router
from soma.settings.training import Compute
from soma.steps.evaluate import evaluate_parts


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
    engine = create(how.engine, how.device)
    plan = make_plan(Config.model_validate(read_json(settings)))
    data, features = open_set("test", windows), Features.load(routing / "features")
    frames = []
    for run_id in chosen_runs(plan, pd.read_parquet(tuning)):
        run = plan.runs[run_id]
        parts = [runs / run.id / part for part in plan.parts(run)]
        start = runs / run.start / plan.parts(plan.runs[run.start])[0] if run.start else None
        clustered = "clusters" in run.shards
        router = Router.load(routing / f"router-n{run.experts}", features) if clustered else None
        active = [plan.arms[plan.arm_of[run.id]].active]
        frames.append(evaluate_parts(run, parts, start, router, data, active, engine))
    with atomic_path(output) as path:
        pd.concat(frames, ignore_index=True).to_parquet(path, index=False)
