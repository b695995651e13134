"""The routed ensemble: p(y | x) is the mean over the selected experts of p_e(y | x) (docs/paper.md section 3).

Shapes: N experts, n windows, K selected experts per window, S scored bytes, W window bytes, R routed prefix bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from soma.forward.engine import Engine
from soma.models.experts import Experts
from soma.numerics import exact

TokenLosses = Callable[[int, NDArray[np.uint8]], NDArray[np.float64]]
"""Loss of every target [n, W] of windows [n, W + 1] under one expert, in nats, each from the zero state."""


def lstm_losses(engine: Engine, experts: Experts) -> TokenLosses:
    """Return the losses of LSTM experts."""
    return lambda expert, windows: engine.token_losses(experts[expert], windows[None])[0]


def selected_losses(
    token_losses: TokenLosses, windows: NDArray[np.uint8], selected: NDArray[np.integer], prefix: int
) -> NDArray[np.float64]:
    """Compute the loss of every scored byte under each selected expert alone, in nats.

    Output positions R ... W - 1 are scored: the router saw bytes 0 ... R - 1, byte R is an input only.

    Args:
        windows: bytes [n, W + 1].
        selected: experts of each window [n, K].

    Returns:
        float64 [n, K, S] with S = W - R.
    """
    n, k = selected.shape
    out = np.empty((n, k, windows.shape[1] - 1 - prefix))
    for e in np.unique(selected):
        row, column = np.nonzero(selected == e)
        out[row, column] = token_losses(int(e), windows[row])[:, prefix:]
    return out


def mixture_losses(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute -log of the mean probability over the selected experts: [n, K, S] to [n, S], in float64."""
    lowest = losses.min(axis=1, keepdims=True)
    total = np.add.accumulate(exact.exp(lowest - losses), axis=1)[:, -1]
    return lowest[:, 0] - exact.log(total / losses.shape[1])
