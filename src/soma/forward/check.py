"""Comparison of an engine with the float64 reference, on small problems, as a machine is prepared for training.

It answers in seconds whether an engine computes the right numbers on a device: on a compute node before a campaign
(`check_engine`), and before times are measured (benchmarks/gpu.py). tests/forward has the thorough comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.forward.engine import Engine
from soma.forward.probes import Probes
from soma.forward.reference import ReferenceEngine
from soma.forward.registry import create
from soma.models import lstm
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

EPS = 1e-3


@dataclass(frozen=True)
class Size:
    """Sizes of the perturbed losses of one expert: width, directions, sequences, and bytes of a sequence."""

    width: int
    directions: int = 64
    batch: int = 64
    time: int = 1024


CHECKED = (Size(32, 4, 16, 64), Size(33, 2, 5, 40), Size(181, 2, 4, 40), Size(509, 1, 3, 20))
"""Widths on both sides of the border between the two networks of the triton engine, and those of the paper."""


@dataclass(frozen=True)
class Problem:
    """The arguments of `Engine.losses` for one expert."""

    expert: Experts
    tokens: NDArray[np.uint8]
    probes: Probes

    @classmethod
    def of(cls, size: Size, device: torch.device) -> Problem:
        """Draw initial weights, and bytes from a Markov chain with four successors per byte."""
        spec = LSTMSpec(size.width)
        theta, head = lstm.initialise(spec, Stream.named(0, "benchmark", "initial"))
        stream = Stream.named(0, "benchmark", "bytes")
        successors = 32 + stream.integers(1024, 95).reshape(256, 4)
        choices = stream.integers(size.batch * size.time, 4, direction=1).reshape(size.batch, size.time)
        tokens = np.full((1, size.batch, size.time + 1), 32, dtype=np.uint8)
        tokens[0, :, 0] += np.arange(size.batch, dtype=np.uint8) % 95
        for t in range(size.time):
            tokens[0, :, t + 1] = successors[tokens[0, :, t], choices[:, t]]
        probes = Probes(spec, Stream.named(0, "benchmark", "probe"), "sparse", 1, (0,), range(size.directions))
        return cls(Experts(spec, theta[None], head[None]).to(device), tokens, probes)

    def losses(self, engine: Engine) -> NDArray[np.float64]:
        return engine.losses(self.expert, self.tokens, self.probes, [EPS])


@dataclass(frozen=True)
class Agreement:
    """How closely an engine agrees with the reference on one problem."""

    difference_error: float
    """Largest error of L+ - L-, relative to its root mean square."""
    loss_error: float
    """Largest relative error of a loss."""
    token_loss_error: float
    """Largest error of the loss of a byte, in nats."""
    combine_equal: bool
    """Whether combined directions have the same bits."""

    @property
    def passed(self) -> bool:
        # The limits of tests/forward: float32 rounding at these sizes, with a margin of about ten.
        return (
            self.difference_error <= 2e-4
            and self.loss_error <= 3e-6
            and self.token_loss_error <= 1e-4
            and self.combine_equal
        )


def compare(engine: Engine, size: Size, device: torch.device) -> Agreement:
    """Compare losses, their differences, losses of single bytes and combined directions with the reference."""
    reference, on_cpu, problem = ReferenceEngine(), Problem.of(size, torch.device("cpu")), Problem.of(size, device)
    want, got = on_cpu.losses(reference), problem.losses(engine)
    difference, error = want[..., 0] - want[..., 1], (got - want)[..., 0] - (got - want)[..., 1]
    bytes_want = reference.token_losses(on_cpu.expert, on_cpu.tokens)
    bytes_got = engine.token_losses(problem.expert, problem.tokens)
    coefficients = Stream.named(0, "benchmark", "coefficients").normal(size.directions)[None]
    combined = engine.combine(problem.probes, coefficients), reference.combine(on_cpu.probes, coefficients)
    return Agreement(
        difference_error=float(np.max(np.abs(error)) / np.sqrt(np.mean(difference**2))),
        loss_error=float(np.max(np.abs(got / want - 1))),
        token_loss_error=float(np.max(np.abs(bytes_got - bytes_want))),
        combine_equal=bool(np.array_equal(*combined)),
    )


def check_engine(engine_name: str, device: str) -> dict[int, float]:
    """Check an engine on a device, and return the largest relative error of L+ - L- by width.

    Args:
        engine_name: as compute.engine; `auto` is the best one available.

    Raises:
        SomaError: if the engine is not available here, or does not agree with the reference at a width.
    """
    engine, errors = create(engine_name, device), {}
    for size in CHECKED:
        found = compare(engine, size, torch.device(device))
        if not found.passed:
            raise SomaError(
                f"the engine {engine.name} on {device} does not agree with the reference at width {size.width} "
                f"({found}); do not train with it: use another compute.engine, or another version of torch or driver."
            )
        errors[size.width] = found.difference_error
    return errors
