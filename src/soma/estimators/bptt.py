"""Backpropagation through time: the exact gradient of the same experts on the same batches, by autograd.

Shapes: E experts, B sequences, T predicted bytes, M body parameters, V bytes, H embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.models import lstm
from soma.models.experts import Experts

HeadPath = Literal["full", "decoder"]


def gradient(
    experts: Experts, batches: Sequence[NDArray[np.uint8]], head_path: HeadPath
) -> tuple[Tensor, Tensor, NDArray[np.float64]]:
    """Compute mean gradients over accumulated batches.

    Args:
        batches: one uint8 array [E, B, T + 1] per accumulated batch.
        head_path: `full` counts the head as decoder and as input embedding, `decoder` as decoder alone.

    Returns:
        Gradient of the bodies [E, M] and of the heads [E, V, H], and the loss of each expert in nats per byte [E].
    """
    body = experts.theta.detach().requires_grad_()
    tied = experts.head.detach().contiguous().requires_grad_()
    embedded = Experts(experts.spec, body, tied if head_path == "full" else tied.detach())
    losses = torch.zeros(len(experts), dtype=torch.float64, device=body.device)
    for tokens in batches:
        bytes_ = torch.from_numpy(tokens).to(body.device)
        hidden, _ = lstm.hidden(embedded, bytes_[:, :, :-1])
        loss = lstm.cross_entropy(hidden, tied, bytes_[:, :, 1:]).double().mean(dim=(1, 2))
        # Experts share no parameters, so the gradient of the sum contains each expert's own.
        (loss.sum() / len(batches)).backward()
        losses += loss.detach() / len(batches)
    assert body.grad is not None
    assert tied.grad is not None
    return body.grad, tied.grad, losses.cpu().numpy()
