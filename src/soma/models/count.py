"""Parameters and arithmetic operations, counted exactly (PAPER.md sections 3 and 5)."""

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
    spec: LSTMSpec, *, n_pert: int, batch: int, accumulation: int, crop: int, experts: int, updates: int
) -> int:
    """C_train = 2 T n_pert B N F_N s, B = batch * accumulation; both signs counted, head updates and routing not."""
    per_update = 2 * crop * n_pert * batch * accumulation * operations_per_token(spec)
    return per_update * experts * updates
