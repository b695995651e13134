"""Error of the estimate against a backpropagation reference (Figure 5, Table 8, claim C7)."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.analysis.reference import estimate_errors
from soma.machine import device_name
from soma.runs import RunSpec
from soma.steps.measured import Inputs


def measure(at: Inputs) -> pd.DataFrame:
    """Measure at the first and the last milestone of every run, on its training text."""
    product, frames = at.product, []
    for opened in at.opened():
        run = opened.run
        batches = partial(_batch, at, run)
        for update in at.updates(run):
            theta, head = opened.weights(update)
            rows = estimate_errors(
                at.engine,
                run.model,
                theta,
                head,
                batches,
                [tuple(setting) for setting in product["settings"]],
                product["repeats"],
                product["sequences"],
                run.settings.eps,
                run.seed,
                run.settings.probe,
            )
            sizes = {"coordinates": run.experts * run.model.size, "width": run.settings.width}
            where = {"device": device_name(at.compute.device), "engine": at.engine.name, "threads": at.compute.threads}
            frames.append(rows.assign(run=run.id, seed=run.seed, update=update, **sizes, **where))
    return pd.concat(frames, ignore_index=True)


def _batch(at: Inputs, run: RunSpec, expert: int, index: int) -> NDArray[np.uint8]:
    return at.batch(run, expert, run.settings.batch, index, "reference")
