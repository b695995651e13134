"""The evaluation step: one run on one evaluation set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.data.sets import EvaluationSet
from soma.evaluate import evaluate, open_set
from soma.forward.engine import Engine, create
from soma.manifest import atomic_path, read_json
from soma.models.lstm import initialise
from soma.rng import Stream
from soma.routing.features import Features
from soma.routing.router import Router
from soma.runs import RunSpec
from soma.settings.training import Compute
from soma.training.checkpoint import Checkpoints


def evaluate_run(
    settings: Path,
    role: Literal["validation", "test", "external"],
    windows: Path,
    parts: Sequence[Path],
    start: Path | None,
    router: Path | None,
    features: Path | None,
    active: Sequence[int],
    output: Path,
    compute: Path,
    threads: int,
) -> None:
    """Per-document losses of a run, as Parquet.

    Args:
        parts: folders of the run's parts.
        start: folder of the start run's part, whose frozen head the run shares.
        router, features: of a run with clusters.
        active: numbers of experts to average.
    """
    torch.set_num_threads(threads)
    how = Compute.model_validate(read_json(compute))
    run = RunSpec.model_validate(read_json(settings))
    loaded = None if router is None or features is None else Router.load(router, Features.load(features))
    data = open_set(role, windows)
    rows = evaluate_parts(run, parts, start, loaded, data, active, create(how.engine, how.device))
    with atomic_path(output) as path:
        rows.to_parquet(path, index=False)


def evaluate_parts(
    run: RunSpec,
    parts: Sequence[Path],
    start: Path | None,
    router: Router | None,
    data: EvaluationSet,
    active: Sequence[int],
    engine: Engine,
) -> pd.DataFrame:
    """Rows of `soma.evaluate.evaluate` for a run's published parts."""
    checkpoints = Checkpoints.open(run, {p.name: p / "checkpoints.safetensors" for p in parts})
    return evaluate(run, checkpoints, _frozen_head(run, start), select(router, data, max(active)), data, engine, active)


def _frozen_head(run: RunSpec, start: Path | None) -> Tensor | None:
    """The head [V, H] that all experts share, where they do: the start run's, or as it was drawn."""
    if run.trains_head or run.settings.method == "eggroll":
        return None
    if start is None:
        return initialise(run.model, Stream.named(run.seed, run.kind, "init"))[1]
    source = RunSpec.model_validate(read_json(start / "run.json")["run"])
    return Checkpoints.open(source, {start.name: start / "checkpoints.safetensors"}).heads(source.updates, "last")[0]


def select(router: Router | None, data: EvaluationSet, k: int) -> NDArray[np.int64]:
    """Experts of every window [n, k]: the router's nearest, or the first k where shards mean nothing."""
    if router is None:
        return np.broadcast_to(np.arange(k), (len(data), k))
    return router.route(data.windows, data.prefix, k)
