"""Losses of any torch module at many weights, by `torch.func`: the torch engine for models of one's own.

A module maps bytes [B, T] (int64) to the logits [B, T, 256] of the byte after each, from those up to it. Here it is a
function of one flat vector of its parameters, in the order in which it lists them; parameters that it ties count once.
It is used in evaluation mode, so that a loss depends on the weights and the text alone.

Shapes: P copies, J directions, M parameters, B sequences, T predicted bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from soma.errors import SomaError
from soma.forward.probes import ProbeKind, Probes
from soma.models.spec import VOCABULARY, LSTMSpec, Slot, lay_out
from soma.numerics.rng import Stream

_BUDGET = 1 << 24
"""Logits in memory at once, which decide how many copies are computed together."""


@dataclass(frozen=True)
class ModuleSpec:
    """The parameters of a module as one vector, as far as directions depend on them."""

    layout: tuple[Slot, ...]

    @cached_property
    def size(self) -> int:
        """Number of parameters (M)."""
        return sum(slot.size for slot in self.layout)

    @cached_property
    def gains(self) -> NDArray[np.bool_]:
        """Mask of the parameters with one dimension, gains and biases, which sparse probes always keep; [M]."""
        return np.repeat([slot.is_gain for slot in self.layout], [slot.size for slot in self.layout])


class Network:
    """A module as a function of its weights."""

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        """Take a module, whose own weights are only read."""
        # torch's fused layer of a transformer in evaluation mode has no rule for copies, and is not counted.
        torch.backends.mha.set_fastpath_enabled(False)
        self.module = module.to(device).train(False).requires_grad_(False)
        self.device = torch.device(device)
        self.spec = ModuleSpec(lay_out([(name, tuple(p.shape)) for name, p in self.module.named_parameters()]))
        self.size = self.spec.size
        self._batches = True  # whether torch can compute copies of the module together

    def weights(self) -> Tensor:
        """Return the module's own weights, float32 [M]."""
        return torch.cat([parameter.detach().flatten().float() for parameter in self.module.parameters()])

    def losses(self, copies: Tensor, tokens: NDArray[np.uint8]) -> Tensor:
        """Compute the mean loss of tokens [B, T + 1] in nats per byte at weights [P, M]; float64 [P]."""
        text = self._text(tokens)
        at_once = max(1, _BUDGET // (text[:, 1:].numel() * VOCABULARY))
        if self._batches:
            try:
                return vmap(lambda theta: self._each(theta, text).mean(), chunk_size=at_once)(copies)
            except RuntimeError:  # some modules have no rule for a batch of weights; any other error comes again
                self._batches = False
        return torch.stack([self._each(theta, text).mean() for theta in copies])

    def token_losses(self, theta: Tensor, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Compute the loss of every target of tokens [B, T + 1] in nats at weights [M]; float64 [B, T]."""
        text = self._text(tokens)
        parts = text.split(max(1, _BUDGET // (text[0, 1:].numel() * VOCABULARY)))
        return torch.cat([self._each(theta.to(self.device), part) for part in parts]).cpu().numpy()

    def gradient(self, theta: Tensor, tokens: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """Backpropagate the mean loss of tokens [B, T + 1] at weights [M]; return the gradient [M] and the loss."""
        text = self._text(tokens)
        gradient, loss = grad_and_value(lambda at: self._each(at, text).mean())(theta)
        return gradient, loss.detach()

    def directions(self, kind: ProbeKind, stream: Stream, update: int, expert: int, numbers: range) -> Tensor:
        """Draw directions as those of the package's models (`soma.forward.probes`); float32 [J, M]."""
        probes = Probes(cast(LSTMSpec, self.spec), stream, kind, update, (expert,), numbers)  # it needs no more of it
        return torch.from_numpy(probes.vectors()[0].astype(np.float32)).to(self.device)

    def _text(self, tokens: NDArray[np.uint8]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.int64, device=self.device)

    def _each(self, theta: Tensor, text: Tensor) -> Tensor:
        """Compute the loss of every target of text [B, T + 1] at weights [M]; float64 [B, T]."""
        pieces = zip(self.spec.layout, theta.split([slot.size for slot in self.spec.layout]), strict=True)
        weights = {slot.name: piece.view(slot.shape) for slot, piece in pieces}
        inputs, targets = text[:, :-1], text[:, 1:]
        with sdpa_kernel(SDPBackend.MATH):  # attention as products, which torch can do for copies and count
            logits = functional_call(self.module, weights, (inputs,))
        if logits.shape != (*inputs.shape, VOCABULARY):
            raise SomaError(
                f"{type(self.module).__name__} maps bytes {tuple(inputs.shape)} to {tuple(logits.shape)}; return the "
                f"logits of the next byte, {(*tuple(inputs.shape), VOCABULARY)}."
            )
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").double().view(targets.shape)


class Losses:
    """The losses of one batch at any weights: what an estimator may ask of a model."""

    def __init__(self, network: Network, tokens: NDArray[np.uint8]) -> None:
        """Take a model and tokens [B, T + 1]."""
        self.network, self.tokens = network, tokens

    def __call__(self, copies: Tensor) -> Tensor:
        """Compute the mean loss in nats per byte at weights [P, M]; float64 [P]."""
        return self.network.losses(copies, self.tokens)

    def gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Backpropagate at weights [M]; return the gradient [M] and the loss."""
        return self.network.gradient(theta, self.tokens)


class Counted(Losses):
    """Losses that stand for those of a whole batch while torch counts what an estimator asks for.

    Counted are the products of matrices inside the model, a multiply-add as two. One copy is computed for any number of
    them, and what an estimator computes from the losses is left out, as in the paper.
    """

    operations = 0

    def __call__(self, copies: Tensor) -> Tensor:
        with _counting() as counter:
            loss = super().__call__(copies[:1])
        self.operations += len(copies) * counter.get_total_flops()
        return loss.expand(len(copies))

    def gradient(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        with _counting() as counter:
            result = super().gradient(theta)
        self.operations += counter.get_total_flops()
        return result


@contextmanager
def _counting() -> Iterator[FlopCounterMode]:
    """Count operations; oneDNN, whose recurrent layers are one operator that torch does not count, is switched off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of GPUs that this switch has nothing to do with
        with torch.backends.mkldnn.flags(enabled=False), FlopCounterMode(display=False) as counter:
            yield counter
