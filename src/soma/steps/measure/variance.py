"""Relative variance of the gradient estimate at saved checkpoints (Figure 10, claim C6)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import torch

from soma.analysis.variance import ensemble_variance
from soma.forward.torch_engine import TorchEngine
from soma.steps.measured import Inputs
from soma.steps.published import Published


def measure(at: Inputs) -> pd.DataFrame:
    """Measure at the first and the last milestone of every run, on expert-validation text, in FP32 and FP64."""
    frames = [rows for opened in at.opened() for rows in _of_run(at, opened)]
    return pd.concat(frames, ignore_index=True)


def _of_run(at: Inputs, opened: Published) -> Iterator[pd.DataFrame]:
    run, product = opened.run, at.product
    chunks = np.stack(
        [
            [at.batch(run, e, product["batch"], chunk, "variance", validation=True) for e in range(run.experts)]
            for chunk in range(product["chunks"])
        ]
    )
    double = TorchEngine(torch.device(at.compute.device), torch.float64)
    engines = {
        f"fp32 ({at.engine.name})": (at.engine, product["probes"]),
        "fp64": (double, product["probes"]),
    }
    for update in at.updates(run):
        theta, head = opened.weights(update)
        rows = ensemble_variance(
            run.model, theta, head, chunks, engines, run.settings.eps, product["n_pert"], run.seed, run.settings.probe
        )
        sizes = {"coordinates": run.experts * run.model.size, "parameters": run.parameters}
        yield rows.assign(run=run.id, seed=run.seed, update=update, **sizes)
