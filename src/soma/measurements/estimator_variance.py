"""Variance and bias of estimators of one gradient, at fixed weights and on a fixed batch (not in the paper).

Shapes: R repeats, B sequences, T predicted bytes, M body parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.config.training import FiniteDifference
from soma.estimators import spsa
from soma.forward.engine import Engine
from soma.forward.probes import ProbeKind, Probes
from soma.measurements.gradients import exact_gradients
from soma.measurements.inputs import Inputs
from soma.measurements.variance import activity
from soma.models.count import spsa_forwards
from soma.models.experts import Experts
from soma.numerics.rng import Stream


def measure(at: Inputs) -> pd.DataFrame:
    """Measure at the trained weights of the first arm's first expert, on one batch of its training text."""
    opened = at.runs[0]
    run = opened.run
    tokens = at.batch(run, 0, run.settings.batch, 0, "estimators")
    settings = [(e["arm"], e["probe"], e["difference"], e["n_pert"]) for e in at.settings["estimators"]]
    rows = estimator_variance(
        at.engine, opened.experts()[0], tokens[None], settings, at.product["repeats"], run.settings.eps, run.seed
    )
    return rows.assign(measured_on=run.id)


Setting = tuple[str, ProbeKind, FiniteDifference, int]
"""Name, probe, difference and n_pert."""


def estimator_variance(
    engine: Engine,
    expert: Experts,
    tokens: NDArray[np.uint8],
    settings: Sequence[Setting],
    repeats: int,
    eps: float,
    seed: int,
) -> pd.DataFrame:
    """Compute one row per setting from `repeats` independent estimates of the body's gradient.

    An `alternating` estimate is the mean over two updates that share their directions, and counts the forwards of both.
    Settings with the same kind of probe share directions, which reduces the noise of their comparison.

    Args:
        expert: one expert.
        tokens: the batch [1, B, T + 1].
        settings: the settings to compare.
        repeats: R, at least two; all R estimates [R, M] are held in memory.
        eps: perturbation size.

    Returns:
        `forwards`: forward passes of the batch per estimate.
        `relative_variance`: mean over repeats of ||g_hat - mean g_hat||^2 R / (R - 1) / ||g||^2 with the exact gradient
            g (BPTT in float64), and `relative_variance_se`, its standard error.
        `relative_bias2`: unbiased estimate of ||E g_hat - q g||^2 / ||g||^2, which may be negative, with the activity q
            that the kind of probe expects (1/2 for a sparse probe's weights, else 1).
        `cosine`: mean cosine of g_hat and g, and `cosine_se`.
    """
    if repeats < 2:
        raise ValueError(f"{repeats} estimate has no variance; use two or more")
    spec = expert.spec
    exact = exact_gradients(expert, tokens)[0]
    norm2 = exact @ exact
    stream = Stream.named(seed, "estimator-variance", "probe")
    rows: list[dict[str, Any]] = []
    for name, probe, difference, n_pert in settings:
        sides = (1, -1) if difference == "alternating" else (1,)
        estimates = np.zeros((repeats, spec.size))
        for repeat in range(repeats):
            probes = Probes(spec, stream, probe, repeat, (0,), range(n_pert))
            for side in sides:
                one = spsa.estimate(engine, expert, [tokens], [probes], [eps], difference=difference, side=side)
                estimates[repeat] += one.gradient[0] / len(sides)
        mean = estimates.mean(axis=0)
        spread = ((estimates - mean) ** 2).sum(axis=1) * (repeats / (repeats - 1)) / norm2
        cosine = estimates @ exact / np.sqrt((estimates**2).sum(axis=1) * norm2)
        bias2 = ((mean - activity(spec, probe) * exact) ** 2).sum() / norm2 - spread.mean() / repeats
        rows.append(
            {
                "name": name,
                "probe": probe,
                "difference": difference,
                "n_pert": n_pert,
                "forwards": len(sides) * spsa_forwards(n_pert, difference),
                "relative_variance": spread.mean(),
                "relative_variance_se": spread.std(ddof=1) / repeats**0.5,
                "relative_bias2": bias2,
                "cosine": cosine.mean(),
                "cosine_se": cosine.std(ddof=1) / repeats**0.5,
                "repeats": repeats,
            }
        )
    return pd.DataFrame(rows)
