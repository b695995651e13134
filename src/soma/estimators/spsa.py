"""SPSA: differences of losses along random directions (docs/paper.md section 4), and its alternatives.

    g = 1/n_pert * sum_j D_j z_j, with L+- = L(theta +- eps z_j), L0 = L(theta) on the same batch

    central      D = (L+ - L-) / (2 eps)            the paper's; its bias is O(eps^2)
    one-sided    D = (L+ - L0) / eps                half the forwards, and bias O(eps)
    curvature    D = (L+ - L-) / (2 eps c)          1.5-SPSA, c = max((|L+ - 2 L0 + L-| / eps^2)^(1/10), 1)
    alternating  D = (L+ - L0) / eps at even updates, (L0 - L-) / eps along the same directions at odd ones

The error of a one-sided difference is eps z^T H z / 2 to first order, with the sign of the side. Updates 2t and 2t + 1
of `alternating` therefore have errors of opposite sign, which cancel in Adam's momentum as far as the weights have not
moved.

Shapes: E experts, J = n_pert directions, M body parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from soma.config.training import FiniteDifference
from soma.forward.engine import Engine
from soma.forward.probes import Probes
from soma.models.experts import Experts
from soma.numerics import exact

Loss = Literal["independent", "summed"]

CURVATURE_ROOT: Final = 10
"""1 / alpha of 1.5-SPSA, as in its author's public code, where the floor of c is also 1."""


@dataclass(frozen=True)
class Estimate:
    """A gradient estimate and the losses it was computed from."""

    gradient: NDArray[np.float64]
    """Estimate for the bodies, [E, M]."""
    loss: NDArray[np.float64]
    """Mean of all evaluated losses, nats per byte, [E]."""


def turn(difference: FiniteDifference, update: int) -> tuple[int, int]:
    """Return which update's directions an update uses, and the side, 1 or -1, of a one-sided difference along them."""
    return (update // 2, 1 - 2 * (update % 2)) if difference == "alternating" else (update, 1)


def estimate(
    engine: Engine,
    experts: Experts,
    batches: Sequence[NDArray[np.uint8]],
    probes: Sequence[Probes],
    eps: list[float],
    loss: Loss = "independent",
    difference: FiniteDifference = "central",
    side: int = 1,
) -> Estimate:
    """Average the estimates over accumulated batches, each with its own directions.

    Args:
        experts: not modified; heads are never perturbed.
        batches: one uint8 array [E, B, T + 1] per accumulated batch.
        probes: the directions of each batch.
        eps: perturbation size of each expert.
        loss: factor of an expert's probe: the difference of its own loss, or of the sum of all experts' losses.
            The mean is the same, since the others' differences do not depend on its probe; the variance is not.
        difference: how to estimate a slope along a direction.
        side: the sign of the step of `one-sided` and `alternating` differences (`turn`).
    """
    signs = (1, -1) if difference in ("central", "curvature") else (side,)
    gradient = np.zeros((len(experts), experts.spec.size))
    mean = np.zeros(len(experts))
    for tokens, directions in zip(batches, probes, strict=True):
        losses = engine.losses(experts, tokens, directions, eps, signs)
        if difference == "central":
            slopes = central_differences(losses, eps, loss)
            mean += exact.mean(losses)
        else:
            centre = exact.mean(engine.token_losses(experts, tokens))
            mean += exact.mean(np.column_stack([losses.reshape(len(losses), -1), centre]))
            if difference == "curvature":
                slopes = curvature_scaled_differences(losses, centre, eps, loss)
            else:
                slopes = one_sided_differences(losses, centre, eps, side, loss)
        gradient += engine.combine(directions, slopes / losses.shape[1])
    return Estimate(gradient / len(batches), mean / len(batches))


def central_differences(
    losses: NDArray[np.float64], eps: list[float], loss: Loss = "independent"
) -> NDArray[np.float64]:
    """Compute [L+ - L-] / (2 eps) for losses [E, J, 2], summing L over experts if `loss` says so; float64 [E, J]."""
    return _over_experts(losses[..., 0] - losses[..., 1], loss) / (2 * np.array(eps)[:, None])


def one_sided_differences(
    losses: NDArray[np.float64],
    centre: NDArray[np.float64],
    eps: list[float],
    side: int = 1,
    loss: Loss = "independent",
) -> NDArray[np.float64]:
    """Compute [L - L0] / (side eps) for losses [E, J, 1] on that side and centre [E]; float64 [E, J]."""
    return _over_experts(losses[..., 0] - centre[:, None], loss) / (side * np.array(eps)[:, None])


def curvature_scaled_differences(
    losses: NDArray[np.float64], centre: NDArray[np.float64], eps: list[float], loss: Loss = "independent"
) -> NDArray[np.float64]:
    """Divide central differences of losses [E, J, 2] by c, from second differences with centre [E]; float64 [E, J]."""
    second = _over_experts((losses - centre[:, None, None]).sum(axis=2), loss) / np.square(eps)[:, None]
    return central_differences(losses, eps, loss) / exact.root(np.maximum(np.abs(second), 1.0), CURVATURE_ROOT)


def _over_experts(difference: NDArray[np.float64], loss: Loss) -> NDArray[np.float64]:
    """Return each expert's own difference [E, J], or that of the sum over all experts."""
    return np.broadcast_to(difference.sum(axis=0), difference.shape) if loss == "summed" else difference
