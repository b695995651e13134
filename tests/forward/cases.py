"""Small problems for every engine.

Shapes: E experts, J directions, B sequences, T predicted bytes, M body parameters, V = 256 bytes, H embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.forward import cpu, native
from soma.forward.engine import Engine
from soma.forward.probes import ProbeKind, Probes
from soma.models import lstm
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

KERNELS = [f"cpu-{isa}" for isa in native.INSTRUCTION_SETS if cpu.library(isa) is not None]
"""The compiled kernels that this machine runs."""


@dataclass(frozen=True)
class Case:
    """One batch for E experts: the arguments of `Engine.losses`."""

    experts: Experts
    tokens: NDArray[np.uint8]
    probes: Probes
    eps: list[float]

    @property
    def spec(self) -> LSTMSpec:
        return self.experts.spec

    @property
    def theta(self) -> Tensor:
        return self.experts.theta

    @property
    def head(self) -> Tensor:
        return self.experts.head

    def losses(self, engine: Engine, *signs: int) -> NDArray[np.float64]:
        """For the engine's default signs if none are given."""
        options = {"signs": signs} if signs else {}
        return engine.losses(self.experts, self.tokens, self.probes, self.eps, **options)

    def token_losses(self, engine: Engine) -> NDArray[np.float64]:
        return engine.token_losses(self.experts, self.tokens)

    def hidden(self, engine: Engine) -> Tensor:
        return engine.hidden(self.experts, self.tokens)

    def head_gradient(self, engine: Engine) -> Tensor:
        return engine.head_gradient(self.experts, self.tokens)

    def some(self, *which: int) -> Case:
        """The same problem for some of the experts."""
        kept = list(which)
        experts = Experts(self.spec, self.theta[kept], self.head[kept])
        probes = replace(self.probes, experts=tuple(self.probes.experts[e] for e in kept))
        return Case(experts, self.tokens[kept], probes, [self.eps[e] for e in kept])

    def with_weights(self, **tensors: Tensor) -> Case:
        """The same problem at another `theta` or `head`."""
        return replace(self, experts=replace(self.experts, **tensors))


def make_case(
    width: int,
    *,
    experts: int = 2,
    batch: int = 3,
    time: int = 5,
    directions: int = 2,
    depth: int = 2,
    embedding: int = 32,
    kind: ProbeKind = "sparse",
    eps: float = 1e-3,
) -> Case:
    """Initial weights and text-like bytes (a Markov chain with four successors)."""
    spec = LSTMSpec(width, depth, embedding)
    theta, head = zip(*(lstm.initialise(spec, Stream.named(e, "init")) for e in range(experts)), strict=True)
    rng = np.random.default_rng(0)
    successors = rng.integers(32, 127, size=(256, 4))
    tokens = np.zeros((experts, batch, time + 1), dtype=np.uint8)
    tokens[..., 0] = rng.integers(32, 127, size=(experts, batch))
    for t in range(time):
        tokens[..., t + 1] = successors[tokens[..., t], rng.integers(0, 4, size=(experts, batch))]
    probes = Probes(spec, Stream.named(1, "probe"), kind, 7, tuple(range(3, 3 + experts)), range(2, 2 + directions))
    made = Experts(spec, torch.stack(theta), torch.stack(head))
    return Case(made, tokens, probes, [eps * (e + 1) for e in range(experts)])


def trained(case: Case) -> Case:
    """The same problem after Adam by backpropagation on its own batch, to 60 % of the initial loss: an untrained model
    is near the uniform distribution, an overfitted one has no loss left whose rounding could be judged."""
    theta = case.theta.clone().requires_grad_()
    optimiser = torch.optim.Adam([theta], lr=0.1 / case.spec.width)
    tokens = torch.from_numpy(case.tokens)
    first = None
    while True:
        optimiser.zero_grad()
        h, _ = lstm.hidden(replace(case.experts, theta=theta), tokens[..., :-1])
        loss = lstm.cross_entropy(h, case.head, tokens[..., 1:]).mean()
        first = first or loss.item()
        if loss.item() < 0.6 * first:
            return case.with_weights(theta=theta.detach())
        loss.backward()
        optimiser.step()


def difference_error(losses: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Rms error of L+ - L- relative to its rms."""
    got, want = (a[..., 0] - a[..., 1] for a in (losses, reference))
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))
