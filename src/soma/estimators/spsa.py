"""SPSA: central differences along random directions (docs/paper.md section 4).

    g = 1/n_pert * sum_j [L(theta + eps z_j) - L(theta - eps z_j)] / (2 eps) * z_j

Shapes: E experts, J = n_pert directions, M body parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from soma.forward.engine import Engine
from soma.models.spec import LSTMSpec
from soma.probes import Probes

Loss = Literal["independent", "summed"]


@dataclass(frozen=True)
class Estimate:
    """A gradient estimate and the losses it came from."""

    gradient: NDArray[np.float64]
    """[E, M]"""
    loss: NDArray[np.float64]
    """Mean over all perturbed copies, nats per byte, [E]."""


def estimate(
    engine: Engine,
    spec: LSTMSpec,
    theta: Tensor,
    head: Tensor,
    batches: Sequence[NDArray[np.uint8]],
    probes: Sequence[Probes],
    eps: list[float],
    loss: Loss = "independent",
) -> Estimate:
    """Average over accumulated batches, each with directions of its own.

    Args:
        theta: bodies [E, M]; left as they are.
        head: tied heads [E, V, H], never perturbed.
        batches: one uint8 array [E, B, T + 1] per accumulated batch.
        probes: the directions of each batch, used with both signs.
        eps: perturbation size of each expert.
        loss: what multiplies an expert's probe: the difference of its own loss, or of the sum of all experts' losses.
            The mean is the same, since the others' differences do not depend on its probe; the variance is not.
    """
    gradient = np.zeros((theta.shape[0], spec.size))
    mean = np.zeros(theta.shape[0])
    for tokens, directions in zip(batches, probes, strict=True):
        losses = engine.losses(spec, theta, head, tokens, directions, eps)
        coefficients = central_differences(losses, eps, loss) / losses.shape[1]
        gradient += engine.combine(directions, coefficients)
        mean += losses.mean(axis=(1, 2))
    return Estimate(gradient / len(batches), mean / len(batches))


def central_differences(
    losses: NDArray[np.float64], eps: list[float], loss: Loss = "independent"
) -> NDArray[np.float64]:
    """[L+ - L-] / (2 eps) for losses [E, J, 2], with L summed over experts if `loss` says so; float64 [E, J]."""
    difference = losses[..., 0] - losses[..., 1]
    if loss == "summed":
        difference = np.broadcast_to(difference.sum(axis=0), difference.shape)
    return difference / (2 * np.array(eps)[:, None])
