"""A fixed separable objective, and the split of directions and sequences (Figure 11, claims C4 and C13)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from soma.analysis.objective import batch_probe_trade_off, measure_pool, separable_variance
from soma.steps.measured import Inputs


def measure(at: Inputs) -> pd.DataFrame:
    """Measure both halves of the figure for every run, distinguished by `part`."""
    product, frames = at.product, []
    for opened in at.opened():
        run = opened.run
        experts = min(4, 1 << (run.experts.bit_length() - 1))
        theta, head = (t[:experts] for t in opened.weights(run.updates))
        fixed = np.stack([at.batch(run, e, product["batch"], 0, "objective") for e in range(experts)])
        common = (at.engine, run.model, theta, head)
        variance = separable_variance(*common, fixed, run.settings.eps, product["n_pert"], product["sets"], run.seed)
        texts = np.stack([at.batch(run, e, product["pool"], 0, "pool") for e in range(experts)])
        pool = measure_pool(*common, texts, run.settings.eps, product["coordinates"], product["probes"], run.seed)
        groups = [g for g in (1, 2, 4) if g <= experts]
        split = batch_probe_trade_off(pool, product["product"], product["repeats"], run.seed, groups)
        where = {"run": run.id, "seed": run.seed, "update": run.updates, "experts": experts}
        frames += [variance.assign(part="variance", **where), split.assign(part="split", **where)]
    return pd.concat(frames, ignore_index=True)
