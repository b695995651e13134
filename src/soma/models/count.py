"""Parameters and arithmetic operations, counted exactly (docs/paper.md sections 3 and 5)."""

from __future__ import annotations

from soma.models.spec import VOCABULARY, LSTMSpec
from soma.settings.training import Difference


def ensemble_parameters(spec: LSTMSpec, experts: int, shared_head: bool) -> int:
    """Parameters of an ensemble: M_head + N M_body with a shared head, N (M_body + M_head) with local heads."""
    heads = 1 if shared_head else experts
    return experts * spec.size + heads * spec.head_size


def operations_per_token(spec: LSTMSpec) -> int:
    """F_N: operations of one expert's forward per byte: body, projections and decoder; a multiply-add is two."""
    body = 16 * spec.depth * spec.width**2
    projections = 2 * spec.width * spec.embedding if spec.projected else 0
    return 2 * (body + projections + VOCABULARY * spec.embedding)


def spsa_forwards(n_pert: int, difference: Difference) -> int:
    """Forwards of a batch: one for each side of a direction that is used, and one at the weights if they are used."""
    sides = 2 if difference in ("central", "curvature") else 1
    return sides * n_pert + (difference != "central")


def training_operations(
    spec: LSTMSpec, *, forwards: int, batch: int, accumulation: int, crop: int, experts: int, updates: int
) -> int:
    """C_train = T forwards B N F_N s with B = batch * accumulation; head updates and routing excluded.

    SPSA takes `spsa_forwards` of a batch, the paper's 2 n_pert. A backward pass is counted as two forwards, one product
    for the gradient of the weights and one for that of the activations, so BPTT takes 3.
    """
    return crop * forwards * batch * accumulation * operations_per_token(spec) * experts * updates
