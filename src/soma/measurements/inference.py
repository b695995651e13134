"""Throughput of complete requests (Tables 12 and 13, claim C9), on windows of the ensemble-validation set."""

from __future__ import annotations

import numpy as np
import pandas as pd

from soma.data.sets import open_validation
from soma.inference import benchmark
from soma.inference.model import Ensemble
from soma.inference.route import PrefixRouter
from soma.measurements.inputs import Inputs


def measure(at: Inputs) -> pd.DataFrame:
    """Measure one row per run, with its trained weights and its own router."""
    data, product = open_validation(at.results / "sets/validation.parquet"), at.product
    rows = []
    for opened, k, requests in zip(at.opened(), at.settings["active"], at.settings["requests"], strict=True):
        windows = np.resize(data.windows, (requests, data.windows.shape[1]))
        run, router = opened.run, at.routers.router(opened.run)
        route = None if router is None else PrefixRouter(router)
        ensemble = Ensemble(opened.experts(), route, k, data.prefix, run.window, device=at.compute.device)
        timed = benchmark.measure(ensemble, windows, repeats=product["repeats"], warm_ups=product["warmups"])
        rows.append(timed | {"run": run.id, "seed": run.seed, "update": run.updates, "parameters": run.parameters})
    return pd.DataFrame(rows)
