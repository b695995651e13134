"""Variance of estimators from the literature at the same weights and text (beyond the paper)."""

from __future__ import annotations

import pandas as pd

from soma.analysis.estimator_variance import estimator_variance
from soma.steps.measured import Inputs


def measure(at: Inputs) -> pd.DataFrame:
    """Measure at the trained weights of the first arm's first expert, on one batch of its training text."""
    opened = at.runs[0]
    run = opened.run
    theta, head = (t[:1] for t in opened.weights(run.updates))
    tokens = at.batch(run, 0, run.settings.batch, 0, "estimators")
    settings = [(e["arm"], e["probe"], e["difference"], e["n_pert"]) for e in at.settings["estimators"]]
    rows = estimator_variance(
        at.engine, run.model, theta, head, tokens[None], settings, at.product["repeats"], run.settings.eps, run.seed
    )
    return rows.assign(measured_on=run.id)
