"""Parameters and arithmetic operations, counted exactly (docs/paper.md sections 3 and 5)."""

from __future__ import annotations

from soma.models.spec import VOCABULARY, LSTMSpec


def ensemble_parameters(spec: LSTMSpec, experts: int, shared_head: bool) -> int:
    """Parameters of an ensemble: M_head + N M_body with a shared head, N (M_body + M_head) with local heads."""
    heads = 1 if shared_head else experts
    return experts * spec.size + heads * spec.head_size


def operations_per_token(spec: LSTMSpec) -> int:
    """F_N: operations of one expert's forward per byte: body, projections and decoder; a multiply-add is two."""
    body = 16 * spec.depth * spec.width**2
    projections = 2 * spec.width * spec.embedding if spec.projected else 0
    return 2 * (body + projections + VOCABULARY * spec.embedding)


def training_operations(
    spec: LSTMSpec, *, forwards: int, batch: int, accumulation: int, crop: int, experts: int, updates: int
) -> int:
    """C_train = T forwards B N F_N s with B = batch * accumulation; head updates and routing excluded.

    SPSA takes 2 n_pert forwards of a batch. A backward pass is counted as two forwards, one product for the gradient of
    the weights and one for that of the activations, so BPTT takes 3.
    """
    return crop * forwards * batch * accumulation * operations_per_token(spec) * experts * updates
