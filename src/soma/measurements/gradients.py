"""Exact gradients of many experts on batches of any size, by backpropagation in pieces that fit in memory.

Shapes: N experts, B sequences, T predicted bytes, M body parameters, V bytes, H embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from soma.estimators.bptt import gradient
from soma.models.experts import Experts
from soma.models.spec import VOCABULARY, LSTMSpec

_FLOATS = 1 << 26
"""Number of activations that autograd holds in memory at once."""


def exact_gradients(
    experts: Experts, tokens: NDArray[np.uint8], dtype: torch.dtype = torch.float64
) -> NDArray[np.float64]:
    """Compute the gradient of each expert's mean loss on its own batch with respect to its body; float64 [N, M].

    Args:
        tokens: bytes [N, B, T + 1].
        dtype: precision of the computation.
    """
    out = np.zeros(tuple(experts.theta.shape))
    for e, expert in enumerate(experts):
        for piece in _pieces(experts.spec, tokens[e]):
            part, _, _ = gradient(expert.to(dtype), [piece[None]], "decoder")
            out[e] += part[0].double().cpu().numpy() * (len(piece) / tokens.shape[1])
    return out


def sequence_gradients(
    expert: Experts, tokens: NDArray[np.uint8], dtype: torch.dtype = torch.float64
) -> NDArray[np.float64]:
    """Compute one expert's (N = 1) gradient on each sequence of bytes [B, T + 1]; float64 [B, M]."""
    out = []
    for piece in _pieces(expert.spec, tokens):
        # Each sequence has its own copy of the expert, so that its gradient stays separate.
        copies = expert.copies(expert.theta.repeat(len(piece), 1)).to(dtype)
        out.append(gradient(copies, [piece[:, None]], "decoder")[0].double().cpu().numpy())
    return np.concatenate(out)


def _pieces(spec: LSTMSpec, tokens: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """Yield sequences [B, T + 1] in consecutive pieces."""
    per_sequence = (tokens.shape[1] - 1) * (40 * spec.depth * spec.width + 4 * VOCABULARY)
    size = max(1, _FLOATS // per_sequence)
    for first in range(0, len(tokens), size):
        yield tokens[first : first + size]
