"""The gated recurrent model of the EGGROLL baseline: six residual blocks of a one-gate cell and a linear MLP.

    norm(x) = w x / mean|x|                       W (x) v = C(W v / sqrt(d_in))
    f = C(Wf (x) u + Uf (x) h + bf)               g = sigma(f)
    k = tau(C(Wh (x) u + Uh (x) (g h) + bh))      h <- h + g (k - h)
    x <- x + h  with u = norm(x),                 x <- x + W2 (x) (W1 (x) norm(x))

Weights have unit scale; the factor 1/sqrt(d_in) is in the forward. With `clip`, C clips to +-127/16, the range of the
8-bit original, sigma(f) = (f / c + 1) / 2 and tau is the identity; with `sigmoid_tanh`, C is the identity. The
parameters are reached through `Parameters`, so that the model itself and a population of perturbed models, none of
which has its weights in memory, are the same code.

Shapes: B rows of text (windows, or one for each pair), G copies of the model that read a row (1, or 2 for an antithetic
pair), T time steps, D width, L depth, V = 256 bytes, M parameters.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.models.gru_spec import GRUSpec
from soma.numerics.rng import Stream

Nonlinearity = Literal["clip", "sigmoid_tanh"]

CLIP = 127 / 16
NORM_FLOOR = 1e-6
"""Smallest divisor of a norm."""
_DECODED = 16
"""Steps decoded at once, to limit the memory of logits; constant, so that rounding does not depend on the number of
rows."""


class Parameters(Protocol):
    """Weights of G copies of the model for each of B rows."""

    def rows(self, name: str, index: Tensor) -> Tensor:
        """Look up rows [B, G, T, D] of an embedding for indices [B, T]."""

    def product(self, name: str, x: Tensor) -> Tensor:
        """Compute W x / sqrt(d_in) for x [B, G, T, d_in]; a new tensor [B, G, T, d_out]."""

    def step(self, name: str, x: Tensor) -> Tensor:
        """Compute the same for one time step, x [B, G, d_in]."""

    def vector(self, name: str) -> Tensor:
        """Return a gain or bias, broadcastable to [B, G, T, D]."""


def initialise(spec: GRUSpec, stream: Stream) -> Tensor:
    """Draw random parameters [M], float32: matrices and embedding N(0, 1), gains 1, biases 0."""
    theta = np.zeros(spec.size)
    for i, slot in enumerate(spec.layout):
        part = theta[slot.offset : slot.offset + slot.size]
        if len(slot.shape) == 2:
            part[:] = stream.normal(slot.size, direction=i + 1)
        elif not slot.name.endswith("bias"):
            part[:] = 1.0
    return torch.from_numpy(theta.astype(np.float32))


def tensors(spec: GRUSpec, theta: Tensor) -> dict[str, Tensor]:
    """Return named views of a flat vector theta [M]."""
    return {s.name: theta[s.offset : s.offset + s.size].view(s.shape) for s in spec.layout}


class Model:
    """The unperturbed parameters: one copy, G = 1."""

    def __init__(self, spec: GRUSpec, theta: Tensor) -> None:
        self._weights = tensors(spec, theta)

    def rows(self, name: str, index: Tensor) -> Tensor:
        return self._weights[name][index.long()][:, None]

    def product(self, name: str, x: Tensor) -> Tensor:
        w = self._weights[name]
        return x @ (w.T * w.shape[1] ** -0.5)

    step = product

    def vector(self, name: str) -> Tensor:
        return self._weights[name]


def token_losses(
    spec: GRUSpec,
    theta: Tensor,
    tokens: NDArray[np.uint8],
    *,
    nonlinearity: Nonlinearity = "clip",
    separator: int | None = 0,
    rows: int = 64,
) -> NDArray[np.float64]:
    """Compute the nats of every target of windows [B, T + 1], each from the zero state; float64 [B, T].

    Args:
        theta: [M]; its dtype is that of the arithmetic, and float64 is the reference.
        separator: input byte at which the state is zeroed; None for never.
        rows: windows in one chunk.
    """
    out = np.empty((tokens.shape[0], tokens.shape[1] - 1))
    model = Model(spec, theta)
    with torch.no_grad():
        for first in range(0, len(tokens), rows):
            part = torch.tensor(tokens[first : first + rows], device=theta.device)
            zero = theta.new_zeros(len(part), 1, spec.depth, spec.width)
            losses, _ = losses_and_state(spec, model, part, zero, nonlinearity, separator)
            out[first : first + rows] = losses[:, 0].double().cpu().numpy()
    return out


def losses_and_state(
    spec: GRUSpec,
    parameters: Parameters,
    tokens: Tensor,
    state: Tensor,
    nonlinearity: Nonlinearity,
    separator: int | None,
) -> tuple[Tensor, Tensor]:
    """Compute the nats of every target, and the final recurrent state.

    Args:
        parameters: G copies for each of B rows.
        tokens: bytes [B, T + 1].
        state: hidden state before the first byte [B, G, L, D].

    Returns:
        losses [B, G, T] and the state after T bytes [B, G, L, D].
    """
    bound = CLIP if nonlinearity == "clip" else None
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    kept = _kept(inputs, separator, state.dtype)
    x = parameters.rows("embedding", inputs)
    after = []
    for i in range(spec.depth):
        name = f"blocks.{i}"
        u = _norm(x, parameters.vector(f"{name}.cell_norm"))
        gate = _clip(parameters.product(f"{name}.gate_input", u), bound) + parameters.vector(f"{name}.gate_bias")
        candidate = _clip(parameters.product(f"{name}.candidate_input", u), bound)
        candidate = candidate + parameters.vector(f"{name}.candidate_bias")
        outputs, h = _recur(parameters, name, gate, candidate, state[:, :, i], kept, bound)
        after.append(h)
        x = x + outputs
        up = _clip(parameters.product(f"{name}.mlp_up", _norm(x, parameters.vector(f"{name}.mlp_norm"))), bound)
        x = x + _clip(parameters.product(f"{name}.mlp_down", up), bound)
    x = _norm(x, parameters.vector("norm"))
    losses = []
    for part, y in zip(x.split(_DECODED, dim=2), targets.split(_DECODED, dim=1), strict=True):
        logits = _clip(parameters.product("head", part), bound)
        chosen = logits.gather(3, y.long()[:, None, :, None].expand(*logits.shape[:3], 1))[..., 0]
        losses.append(torch.logsumexp(logits, dim=3) - chosen)
    return torch.cat(losses, dim=2), torch.stack(after, dim=2)


def _recur(
    parameters: Parameters,
    name: str,
    gate: Tensor,
    candidate: Tensor,
    h: Tensor,
    kept: list[Tensor | None],
    bound: float | None,
) -> tuple[Tensor, Tensor]:
    """Run the cell over T steps, given the input's part of both pre-activations [B, G, T, D]; return outputs and last
    h.
    """
    outputs = []
    gates, candidates = (z.movedim(2, 0).contiguous() for z in (gate, candidate))
    for f, k, keep in zip(gates, candidates, kept, strict=True):
        if keep is not None:
            h = h * keep
        f = f + _clip(parameters.step(f"{name}.gate_hidden", h), bound)
        g = f.sigmoid_() if bound is None else f.clamp_(-bound, bound).mul_(0.5 / bound).add_(0.5)
        k = k + _clip(parameters.step(f"{name}.candidate_hidden", g * h), bound)
        k = k.tanh_() if bound is None else k.clamp_(-bound, bound)
        h = torch.lerp(h, k, g)
        outputs.append(h)
    return torch.stack(outputs, dim=2), h


def _kept(inputs: Tensor, separator: int | None, dtype: torch.dtype) -> list[Tensor | None]:
    """Return per step a factor [B, 1, 1] that is 0 where the state restarts, or None if it restarts in no row."""
    if separator is None:
        return [None] * inputs.shape[1]
    keep = inputs != separator
    everywhere = keep.all(dim=0).tolist()
    return [None if all_ else keep[:, t, None, None].to(dtype) for t, all_ in enumerate(everywhere)]


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    """Normalise x to x w / mean|x| over the last axis."""
    return x * gain / x.abs().mean(dim=-1, keepdim=True).clamp_min(NORM_FLOOR)


def _clip(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else x.clamp_(-bound, bound)
