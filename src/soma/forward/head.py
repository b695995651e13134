"""Delta rule of a tied head: the exact decoder-path gradient with hidden states held fixed (docs/paper.md section 4).

    grad E = 1/(BT) * sum (softmax(E h) - onehot(y)) h^T

There is no path through the input embedding or the body, and no autograd. The CPU engine implements it in its kernel,
with a stated order of sums (csrc/head.h). Shapes: R = B T rows, V bytes, H width of E.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS = 8192  # rows of logits in memory at once


def decoder_gradient(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Compute the gradient [V, H] for hidden states [R, H], head [V, H] and target bytes [R] (any integer dtype)."""
    gradient = torch.zeros_like(head)
    for first in range(0, hidden.shape[0], _ROWS):
        h, y = hidden[first : first + _ROWS], targets[first : first + _ROWS].long()
        residual = torch.softmax(h @ head.T, dim=-1)
        residual[torch.arange(len(y), device=y.device), y] -= 1
        gradient += residual.T @ h
    return gradient / hidden.shape[0]
