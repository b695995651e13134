"""Are the weights of EGGROLL, and its last updates, more than a random walk (not in the paper)?

If fitness carries no information, every update moves each weight by +delta or -delta with probability alpha, so that

    RMS^2 = RMS_0^2 + sum_t alpha_t delta_t^2

and the sums Z of two halves of the population, which share nothing but the weights and the signal, are uncorrelated.
RMS alone does not tell: signal moves few weights far, and a run that learns has nearly the RMS of noise too.

Shapes: P pairs, M parameters, U measured updates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from soma.estimators.eggroll import annealed, read_streams
from soma.measurements.inputs import Inputs
from soma.runs import RunSpec
from soma.training.methods.eggroll import estimator, initial_weights


def measure(at: Inputs) -> pd.DataFrame:
    """Measure every run at the end of its budget."""
    out = []
    for opened in at.opened():
        run = opened.run
        theta = opened.checkpoints.bodies(run.updates, "last")[0]
        out.append(walk(run, theta, at.windows(run).text, at.product["updates"]))
    return pd.DataFrame(out)


def walk(run: RunSpec, theta: Tensor, text: NDArray[np.uint8], updates: int) -> dict[str, Any]:
    """Compare weights with noise, and measure U updates of them that are not taken.

    The members read the text that training would read next, from zero states at first.

    Args:
        theta: [M], at the end of the run.

    Returns:
        `initial_rms`, `rms` and `noise_rms`, which noise alone would give (missing if the step followed the plateau
            schedule, which the weights do not tell).
        `alpha`, at the end; `moved`, the share of weights that move, and `ties`, of pairs of equal loss: means over U.
        `agreement`: mean cosine of Z of both halves of the pairs, and `agreement_se`, its standard error over U.
    """
    s, last = run.settings.eggroll, run.updates - 1
    rule, start = estimator(run), initial_weights(run)
    alphas = [annealed(s.alpha, s.alpha_halved_at, t, run.updates) for t in range(run.updates)]
    noise = float("nan")
    if s.step_halved_at != "plateau":
        steps = [annealed(s.step, s.step_halved_at, t, run.updates) for t in range(run.updates)]
        walked = sum(alpha * step**2 for alpha, step in zip(alphas, steps, strict=True))
        noise = float((_rms(start) ** 2 + walked) ** 0.5)
    states, seen, cosines = rule.initial_states(), list[tuple[float, float]](), list[float]()
    for update in range(run.updates, run.updates + updates):
        tokens = read_streams(text, rule.streams, rule.tokens, update)
        losses, states = rule.member_losses(theta, tokens, states, update)
        half = np.where(np.arange(rule.pairs)[:, None] < rule.pairs // 2, losses, 0.0)  # a tie has no vote
        whole, first = (rule.partial_sums(each, update) for each in (losses, half))
        second = whole - first
        cosines.append(float(first @ second / (first.norm() * second.norm())))
        diagnostics = replace(rule, alpha=alphas[last]).apply(theta, whole, losses)[1]
        seen.append((diagnostics.moved, diagnostics.ties))
    moved, ties = np.mean(seen, axis=0)
    return {
        "run": run.id, "updates": updates, "initial_rms": _rms(start), "rms": _rms(theta), "noise_rms": noise,
        "alpha": alphas[last], "moved": moved, "ties": ties, "agreement": np.mean(cosines),
        "agreement_se": np.std(cosines, ddof=1) / updates**0.5,
    }  # fmt: skip


def _rms(theta: Tensor) -> float:
    return float(theta.double().square().mean().sqrt())
