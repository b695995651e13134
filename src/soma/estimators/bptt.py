"""Backpropagation through time: the exact gradient of the same experts on the same batches.

The body is differentiated by autograd, the head by its closed form. In float32 on a CPU the recurrence is oneDNN's, by
way of `torch.nn.LSTM`, one expert at a time; elsewhere it is the one of `soma.models.lstm`, with all experts at once.

Shapes: E experts, B sequences, T predicted bytes, M body parameters, V bytes, H embedding width, D width, R = B T.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from soma.models import lstm
from soma.models.experts import Experts

HeadPath = Literal["full", "decoder"]

_KEPT = 256 << 20
"""Bytes of freed memory that the process keeps, several times the activations of an expert."""

_ROWS = 256
"""Rows of logits in memory at once: few enough for a processor's cache, where all passes over them are fast."""


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
    if not _has_fused(experts):
        return _together(experts, batches, head_path, lstm.unrolled)
    _keep_freed_memory()
    # Experts share no parameters, and the activations of one fit in a processor's cache.
    one_by_one = [
        _together(expert, [tokens[e : e + 1] for tokens in batches], head_path, fused)
        for e, expert in enumerate(experts)
    ]
    bodies, heads, losses = zip(*one_by_one, strict=True)
    return torch.cat(bodies), torch.cat(heads), np.concatenate(losses)


def fused(
    x: Tensor, from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Compute `soma.models.lstm.unrolled` by `torch.nn.LSTM`, one copy after the other."""
    module = _module(x.shape[-1])
    outputs, h, c = [], [], []
    # Time comes first in its native layout. The parts are unbound, not indexed: the derivative of an index is a whole
    # tensor of zeros.
    for x_, w_input, w_hidden, h_, c_ in zip(
        x.transpose(1, 2).unbind(), from_input.unbind(), from_hidden.unbind(), *state, strict=True
    ):
        weights = {"weight_ih_l0": w_input, "weight_hh_l0": w_hidden}
        out, (last_h, last_c) = torch.func.functional_call(module, weights, (x_, (h_[None], c_[None])))
        outputs.append(out.transpose(0, 1))
        h.append(last_h[0])
        c.append(last_c[0])
    return torch.stack(outputs), (torch.stack(h), torch.stack(c))


def _has_fused(experts: Experts) -> bool:
    """Return whether oneDNN has an LSTM for these weights; elsewhere torch's own is no faster than `unrolled`."""
    weights = experts.theta
    return weights.device.type == "cpu" and weights.dtype == torch.float32 and torch.backends.mkldnn.is_available()


@cache
def _keep_freed_memory() -> None:
    """Let glibc keep the activations' memory between gradients; other C libraries are left as they are.

    Otherwise it may return them to the system after every expert, whose pages then fault again: up to a sixth of the
    time at widths 43 and 63 (benchmarks/peers.py).
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "gnu_get_libc_version"):
        for option, value in ((-1, _KEPT), (-3, 32 << 20)):  # M_TRIM_THRESHOLD; M_MMAP_THRESHOLD, its largest value
            library.mallopt(option, value)


@cache
def _module(width: int) -> nn.LSTM:
    """Return an LSTM without weights."""
    return nn.LSTM(width, width, bias=False, device="meta")


def _together(
    experts: Experts, batches: Sequence[NDArray[np.uint8]], head_path: HeadPath, recurrence: lstm.Recurrence
) -> tuple[Tensor, Tensor, NDArray[np.float64]]:
    """Compute `gradient` for all experts at once."""
    body = experts.theta.detach().requires_grad_()
    heads = experts.head.detach().contiguous()
    embedding = heads.clone().requires_grad_() if head_path == "full" else heads
    of_heads = torch.zeros_like(heads)
    losses = torch.zeros(len(experts), dtype=torch.float64, device=body.device)
    for tokens in batches:
        bytes_ = torch.from_numpy(tokens).to(body.device)
        hidden, _ = lstm.hidden(Experts(experts.spec, body, embedding), bytes_[:, :, :-1], recurrence=recurrence)
        of_hidden = torch.empty_like(hidden)
        share = 1 / (len(batches) * bytes_[0, :, 1:].numel())
        for e, head in enumerate(heads):
            losses[e] += share * _decoder(
                hidden[e].detach().flatten(0, 1),
                head,
                bytes_[e, :, 1:].flatten(),
                of_hidden[e].flatten(0, 1),
                of_heads[e],
            )
        hidden.backward(of_hidden * share)
    of_heads *= share
    assert body.grad is not None
    if embedding.grad is not None:
        of_heads += embedding.grad
    return body.grad, of_heads, losses.cpu().numpy()


def _decoder(hidden: Tensor, head: Tensor, targets: Tensor, of_hidden: Tensor, of_head: Tensor) -> Tensor:
    """Sum the loss of hidden states [R, H] over target bytes [R] and add its derivatives.

    The derivative with respect to the logits is softmax(E h) - onehot(y).

    Args:
        hidden: hidden states [R, H].
        head: the decoder [V, H].
        targets: bytes [R].
        of_hidden: set to the derivative with respect to the hidden states [R, H].
        of_head: the derivative with respect to the head [V, H] is added.

    Returns:
        The sum of the losses in nats, float64.
    """
    total = torch.zeros((), dtype=torch.float64, device=hidden.device)
    for h, y, out in zip(
        hidden.split(_ROWS), targets.long()[:, None].split(_ROWS), of_hidden.split(_ROWS), strict=True
    ):
        logits = h @ head.T
        residual = torch.softmax(logits, dim=1)
        # The largest probability is at least 1/V; the target's underflows in float32 at a loss of 103 nats.
        nats = logits.amax(1) - logits.gather(1, y)[:, 0] - residual.amax(1).log()
        total += nats.double().sum()
        residual.scatter_add_(1, y, residual.new_full((1, 1), -1).expand_as(y))
        of_head.addmm_(residual.T, h)
        torch.mm(residual, head, out=out)
    return total
