"""Exact counts of parameters and arithmetic operations (docs/paper.md sections 3 and 5)."""

from __future__ import annotations

from soma.config.training import FiniteDifference
from soma.models.spec import VOCABULARY, LSTMSpec


def ensemble_parameters(spec: LSTMSpec, experts: int, shared_head: bool) -> int:
    """Count parameters of an ensemble: M_head + N M_body with a shared head, N (M_body + M_head) with local heads."""
    heads = 1 if shared_head else experts
    return experts * spec.size + heads * spec.head_size


def operations_per_token(spec: LSTMSpec) -> int:
    """Count F_N, one expert's forward operations per byte: body, projections and decoder; a multiply-add is two."""
    body = 16 * spec.depth * spec.width**2
    projections = 2 * spec.width * spec.embedding if spec.projected else 0
    return 2 * (body + projections + VOCABULARY * spec.embedding)


BPTT_FORWARDS = 3
"""Forward passes that one batch of backpropagation counts as: a backward pass counts as two."""


def spsa_forwards(n_pert: int, difference: FiniteDifference) -> int:
    """Count the forwards of a batch: one per side of a direction that is used, and one at the weights if used."""
    sides = 2 if difference in ("central", "curvature") else 1
    return sides * n_pert + (difference != "central")


def training_operations(
    spec: LSTMSpec, *, forwards: int, batch: int, accumulation: int, crop: int, experts: int, updates: int
) -> int:
    """Compute C_train = T forwards B N F_N s with B = batch * accumulation; head updates and routing are excluded.

    SPSA takes `spsa_forwards` per batch, the paper's 2 n_pert. A backward pass counts as two forwards, one product for
    the gradient of the weights and one for that of the activations, so BPTT takes 3.
    """
    return crop * forwards * batch * accumulation * operations_per_token(spec) * experts * updates
