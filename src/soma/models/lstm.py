"""The LSTM expert of docs/paper.md section 3, as a pure function of a flat parameter vector.

One implementation serves every engine: the parameter vector and the activations have a leading axis of copies, so a
float64 loop over single copies (the reference), a float32 batch of perturbed copies, and a batch of experts under
autograd use the same code.

Shapes: P copies, B sequences, T time steps, D width (the paper's d), H embedding width (d_E), V = 256 bytes, M
parameters of a body (projections included).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from soma.models.experts import Experts
from soma.models.spec import VOCABULARY, LSTMSpec
from soma.numerics.rng import Stream

LAYER_NORM_EPS = 1e-5  # the paper does not state it; DEVIATIONS.md

State = list[tuple[Tensor, Tensor]]
"""Hidden and cell state of every block, each [P, B, D]."""

Recurrence = Callable[[Tensor, Tensor, Tensor, tuple[Tensor, Tensor]], tuple[Tensor, tuple[Tensor, Tensor]]]
"""One LSTM over time, with the arguments and the result of `unrolled`."""


def initialise(spec: LSTMSpec, stream: Stream) -> tuple[Tensor, Tensor]:
    """Draw a random body [M] and tied head [V, H], float32.

    The paper does not state an initialisation. Matrices are uniform in +-1/sqrt(fan_in), gains 1, and the head is
    normal with variance 1/d_E (measured in DEVIATIONS.md).
    """
    theta = np.ones(spec.size)
    for i, slot in enumerate(spec.layout):
        if not slot.is_gain:
            bound = 1 / math.sqrt(slot.shape[1])
            theta[slot.offset : slot.offset + slot.size] = bound * (2 * stream.uniform(slot.size, direction=i + 1) - 1)
    head = stream.normal(spec.head_size).reshape(VOCABULARY, spec.embedding) / math.sqrt(spec.embedding)
    return torch.from_numpy(theta.astype(np.float32)), torch.from_numpy(head.astype(np.float32))


def unrolled(
    x: Tensor, from_input: Tensor, from_hidden: Tensor, state: tuple[Tensor, Tensor]
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run P LSTMs without biases, one time step after the other and all copies at once.

    Args:
        x: inputs [P, B, T, D].
        from_input: W_x [P, 4 D, D], gates in order i, f, g, o.
        from_hidden: W_h [P, 4 D, D].
        state: h and c before the first step, each [P, B, D].

    Returns:
        h of every step [P, B, T, D], and h and c after the last one.
    """
    (h, c), (p, b, t, d) = state, x.shape
    # The input product does not depend on the recurrence: one product for all T.
    gates_input = x.view(p, b * t, d) @ from_input.transpose(1, 2)
    recurrent = from_hidden.transpose(1, 2)
    outputs = []
    for gates in gates_input.view(p, b, t, 4 * d).unbind(2):
        gate_in, gate_forget, candidate, gate_out = torch.baddbmm(gates, h, recurrent).split(d, dim=2)
        c = torch.sigmoid(gate_forget) * c + torch.sigmoid(gate_in) * torch.tanh(candidate)
        h = torch.sigmoid(gate_out) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs, dim=2), (h, c)


def hidden(
    experts: Experts, inputs: Tensor, state: State | None = None, recurrence: Recurrence = unrolled
) -> tuple[Tensor, State]:
    """Compute the outputs of the body before the decoder.

    Args:
        experts: P copies.
        inputs: bytes [P, B, T], any integer dtype.
        state: state after the preceding bytes; None is the zero state that every window starts from.
        recurrence: how to run an LSTM over time.

    Returns:
        hidden [P, B, T, H], whose product with the head gives the logits of the next byte, and the state after T bytes.
    """
    spec = experts.spec
    w = tensors(spec, experts.theta)
    p, b, t = inputs.shape
    d = spec.width
    copies = torch.arange(p, device=experts.head.device)[:, None, None]
    x = experts.head[copies, inputs.long()].reshape(p, b * t, -1)
    if spec.projected:
        x = x @ w["project_in"].transpose(1, 2)
    zero = x.new_zeros(p, b, d)
    after: State = []
    for i in range(spec.depth):
        outputs, last = recurrence(
            _norm(x, w[f"blocks.{i}.lstm_norm"]).view(p, b, t, d),
            w[f"blocks.{i}.lstm_input"],
            w[f"blocks.{i}.lstm_hidden"],
            state[i] if state is not None else (zero, zero),
        )
        after.append(last)
        x = x + outputs.reshape(p, b * t, d)
        up = _norm(x, w[f"blocks.{i}.mlp_norm"]) @ w[f"blocks.{i}.mlp_up"].transpose(1, 2)
        x = x + F.gelu(up) @ w[f"blocks.{i}.mlp_down"].transpose(1, 2)
    x = _norm(x, w["norm"])
    if spec.projected:
        x = x @ w["project_out"].transpose(1, 2)
    return x.view(p, b, t, -1), after


def tensors(spec: LSTMSpec, theta: Tensor) -> dict[str, Tensor]:
    """Return named views of flat vectors theta [P, M]; each has a leading axis P."""
    # One split, not a slice for each: the derivative of a slice is a whole vector of zeros.
    parts = theta.split([slot.size for slot in spec.layout], dim=1)
    return {slot.name: part.unflatten(1, slot.shape) for slot, part in zip(spec.layout, parts, strict=True)}


def cross_entropy(hidden_: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Compute the nats per byte of every target [P, B, T] under softmax(hidden @ head^T)."""
    logits = torch.einsum("pbth,pvh->pbtv", hidden_, head)
    return torch.logsumexp(logits, dim=-1) - logits.gather(-1, targets.long()[..., None])[..., 0]


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    """Apply LayerNorm with a gain and no bias; x [P, N, D], gain [P, D]."""
    if len(x) == 1:  # the same bits in one pass
        return F.layer_norm(x, x.shape[-1:], gain[0], eps=LAYER_NORM_EPS)
    return F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPS) * gain[:, None, :]
