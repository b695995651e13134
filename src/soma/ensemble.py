"""The routed ensemble: p(y | x) is the mean over the selected experts of p_e(y | x) (PAPER.md section 3).

Shapes: N experts, n windows, K selected experts per window, S scored bytes, W window bytes, R routed prefix bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from soma.forward.engine import Engine
from soma.models.spec import LSTMSpec


def selected_losses(
    engine: Engine,
    spec: LSTMSpec,
    theta: Tensor,
    head: Tensor,
    windows: NDArray[np.uint8],
    selected: NDArray[np.integer],
    prefix: int,
) -> NDArray[np.float64]:
    """Loss of every scored byte under each selected expert alone, in nats.

    Output positions R ... W - 1 are scored: the router saw bytes 0 ... R - 1, byte R is an input only.

    Args:
        theta: bodies [N, M]; head: [N, V, H], or [1, V, H] shared by all.
        windows: bytes [n, W + 1]; the state starts at zero for each.
        selected: experts of each window [n, K].

    Returns:
        float64 [n, K, S] with S = W - R.
    """
    n, k = selected.shape
    out = np.empty((n, k, windows.shape[1] - 1 - prefix))
    for e in np.unique(selected):
        row, column = np.nonzero(selected == e)
        own_head = head[e : e + 1] if head.shape[0] > 1 else head
        losses = engine.token_losses(spec, theta[e : e + 1], own_head, windows[None, row])
        out[row, column] = losses[0, :, prefix:]
    return out


def mixture_losses(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """-log of the mean probability over the selected experts: [n, K, S] to [n, S], in float64."""
    lowest = losses.min(axis=1, keepdims=True)
    mean = np.exp(lowest - losses).mean(axis=1)
    return lowest[:, 0] - np.log(mean)
