"""EGGROLL (docs/paper.md section 4): evolution strategies with rank-one perturbations and a z-test for a gradient.

    F_p = sgn(loss_p- - loss_p+)          Z = sum_p F_p a_p b_p^T          q = Phi^-1(1 - alpha / 2)
    W  <-  W + delta sgn(Z) 1[|Z| >= q sqrt(P)]

If fitness does not depend on the noise, an entry of Z has variance P and a share alpha of all entries moves. There is
no optimiser state. The population is divided over S streams of text; a member carries its recurrent state along its
stream from update to update, so that an update reads only T new bytes of each.

The members are computed by an engine (soma.forward.members), in blocks of `pair_chunk` pairs to limit memory. With the
kernel, a loss does not depend on other pairs, and Z is exact (soma.forward.rank_one): any size of the blocks and any
division of the pairs among workers gives the same bytes. In torch, a product of another shape may round a loss
differently.

Shapes: P pairs, S streams, C pairs of a block, G signs (+ first), T bytes, L depth, D width, M parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import fsum
from statistics import NormalDist
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.forward.members import MemberEngine, Population, TorchMembers
from soma.forward.rank_one import MAX_PAIRS, Noise
from soma.models.gru import Nonlinearity
from soma.models.gru_spec import GRUSpec, operations_per_token, rank_one_operations_per_token
from soma.numerics.rng import Stream

StateRule = Literal["carry", "reset", "pair_shared"]
"""State from which a member starts an update: its own last state (partners diverge, so that their difference is not a
pure central difference), the zero state, or the mean of its pair's last states."""


@dataclass(frozen=True)
class Diagnostics:
    """Statistics of an update."""

    loss: float
    """Mean over all members, nats per byte."""
    moved: float
    """Share of parameters that moved; alpha if nothing is learned."""
    ties: float
    """Share of pairs whose members have the same loss."""


@dataclass(frozen=True)
class Eggroll:
    """The estimator; a pure function of its fields, the parameters, the text and the members' states."""

    spec: GRUSpec
    stream: Stream
    """Stream of the perturbations."""
    population: int
    """Number of members, 2 P."""
    streams: int
    """Number of text streams (S); pair p reads stream p S // P."""
    tokens: int = 100
    """Bytes of each stream per update (T)."""
    sigma: float = 2.0**-4
    alpha: float = 0.01
    step: float = 0.01
    """Step size of a parameter (delta)."""
    state: StateRule = "carry"
    nonlinearity: Nonlinearity = "clip"
    separator: int | None = 0
    """Input byte before which states are zeroed; None for never."""
    pair_chunk: int = 256
    """Pairs per block."""
    engine: MemberEngine = field(default_factory=TorchMembers)

    def __post_init__(self) -> None:
        if self.streams < 1 or self.population < 2 or self.population % (2 * self.streams):
            raise ValueError(
                f"a population of {self.population} is not a whole number of pairs for each of {self.streams} streams"
            )
        if self.pairs > MAX_PAIRS:
            raise ValueError(f"at most {MAX_PAIRS} pairs, since sums over more might not be exact")
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha is {self.alpha}; it is the share of parameters that move by chance, in (0, 1]")
        if self.tokens < 1 or self.pair_chunk < 1:
            raise ValueError("tokens and pair_chunk must be positive")

    @property
    def pairs(self) -> int:
        """Number of pairs (P)."""
        return self.population // 2

    @property
    def noise(self) -> Noise:
        return Noise(self.spec, self.stream)

    @property
    def members(self) -> Population:
        return Population(self.noise, self.sigma, self.nonlinearity, self.separator)

    def blocks(self, pairs: range | None = None) -> Iterator[range]:
        """Yield the blocks of these pairs (default: all), in order."""
        wanted = range(self.pairs) if pairs is None else pairs
        for first in range(wanted.start, wanted.stop, self.pair_chunk):
            yield range(first, min(first + self.pair_chunk, wanted.stop))

    def initial_states(self, device: torch.device | str = "cpu") -> Tensor:
        """Return zero states: [P, 2, L, D] float32; [P, 1, L, D] for `pair_shared`, empty for `reset`."""
        pairs, signs = {"carry": (self.pairs, 2), "pair_shared": (self.pairs, 1), "reset": (0, 2)}[self.state]
        return torch.zeros(pairs, signs, self.spec.depth, self.spec.width, device=device)

    def advance(
        self, theta: Tensor, tokens: NDArray[np.uint8], states: Tensor, update: int
    ) -> tuple[Tensor, Tensor, Diagnostics]:
        """Perform one update, generating each perturbation once; equals `member_losses` then `update`, bit for bit.

        Args:
            theta: [M], not modified.
            tokens: [S, T + 1], from `read_streams`.
            states: as from `initial_states`, not modified.
            update: number of the update; it and a pair's number address the pair's perturbation.

        Returns:
            theta and states after the update.
        """
        losses, after, z = self.evaluate(theta, tokens, states, update)
        theta, diagnostics = self.apply(theta, z, losses)
        return theta, after, diagnostics

    def evaluate(
        self, theta: Tensor, tokens: NDArray[np.uint8], states: Tensor, update: int, pairs: range | None = None
    ) -> tuple[NDArray[np.float64], Tensor, Tensor]:
        """Compute what `member_losses` and then `partial_sums` compute, generating each perturbation once.

        Args:
            states: of these pairs.
            pairs: any range; default: all.

        Returns:
            losses [P, 2], states in the format given, and Z of these pairs, float64 [M].
        """
        wanted = range(self.pairs) if pairs is None else pairs
        losses, after = np.empty((len(wanted), 2)), torch.empty_like(states)
        z = torch.zeros(self.spec.size, dtype=torch.float64, device=theta.device)
        for block in self.blocks(wanted):
            factors = self.engine.factors(self.noise, block, update, theta.device)
            part = slice(block.start - wanted.start, block.stop - wanted.start)
            losses[part], after[part] = self._block(theta, tokens, states[part], factors, block)
            z += self.noise.combine(factors, self._fitness(losses[part], theta.device))
        return losses, after, z

    def member_losses(
        self, theta: Tensor, tokens: NDArray[np.uint8], states: Tensor, update: int, pairs: range | None = None
    ) -> tuple[NDArray[np.float64], Tensor]:
        """Compute the summed nats over T bytes of every member of these pairs (default: all), and their new states.

        Args:
            states: of these pairs.
            pairs: any range.

        Returns:
            losses [P, 2], states in the format given.
        """
        wanted = range(self.pairs) if pairs is None else pairs
        losses, after = np.empty((len(wanted), 2)), torch.empty_like(states)
        for block in self.blocks(pairs):
            part = slice(block.start - wanted.start, block.stop - wanted.start)
            factors = self.engine.factors(self.noise, block, update, theta.device)
            losses[part], after[part] = self._block(theta, tokens, states[part], factors, block)
        return losses, after

    def partial_sums(
        self,
        losses: NDArray[np.float64],
        update: int,
        pairs: range | None = None,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Compute Z of these pairs (default: all) for their losses [P, 2]; float64 [M], exact, so partial sums add
        exactly.
        """
        wanted = range(self.pairs) if pairs is None else pairs
        z = torch.zeros(self.spec.size, dtype=torch.float64, device=device)
        for block in self.blocks(pairs):
            fitness = self._fitness(losses[block.start - wanted.start : block.stop - wanted.start], device)
            z += self.noise.combine(self.engine.factors(self.noise, block, update, torch.device(device)), fitness)
        return z

    def update(self, theta: Tensor, losses: NDArray[np.float64], update: int) -> tuple[Tensor, Diagnostics]:
        """Return the parameters after an update, given its members' losses [P, 2]."""
        return self.apply(theta, self.partial_sums(losses, update, device=theta.device), losses)

    def apply(self, theta: Tensor, z: Tensor, losses: NDArray[np.float64]) -> tuple[Tensor, Diagnostics]:
        """Take the z-test step for Z [M] of the whole population."""
        size = z.abs()
        moves = (size >= NormalDist().inv_cdf(1 - self.alpha / 2) * self.pairs**0.5) & (z != 0)
        direction = torch.where(moves, z.sign(), 0.0).to(theta.dtype)
        diagnostics = Diagnostics(
            loss=fsum(losses.flat) / losses.size / self.tokens,
            moved=float(moves.double().mean()),
            ties=float((losses[:, 0] == losses[:, 1]).mean()),
        )
        return theta + self.step * direction, diagnostics

    @property
    def operations(self) -> int:
        """Operations of an update as the paper counts training: the members' forwards, 2 P T F."""
        return self.population * self.tokens * operations_per_token(self.spec)

    @property
    def noise_operations(self) -> int:
        """Operations that this count excludes: rank-one terms of the forwards, and Z, 2 per pair and parameter."""
        forward = self.population * self.tokens * rank_one_operations_per_token(self.spec)
        return forward + 2 * self.pairs * self.spec.size

    def _block(
        self, theta: Tensor, tokens: NDArray[np.uint8], states: Tensor, factors: Tensor, block: range
    ) -> tuple[NDArray[np.float64], Tensor]:
        """Compute losses [C, 2] and new states of a block."""
        spec = self.spec
        if tokens.shape != (self.streams, self.tokens + 1):
            raise ValueError(f"tokens have shape {tokens.shape}, not {(self.streams, self.tokens + 1)}")
        text = tokens[np.arange(block.start, block.stop) * self.streams // self.pairs]
        before = states.to(theta.dtype) if self.state != "reset" else theta.new_zeros(1, 1, spec.depth, spec.width)
        losses, after = self.engine.losses(self.members, theta, factors, text, before.expand(len(block), 2, -1, -1))
        if self.state == "pair_shared":
            after = after.mean(dim=1, keepdim=True)
        return losses, after if self.state != "reset" else states

    def _fitness(self, losses: NDArray[np.float64], device: torch.device | str) -> Tensor:
        """Compute F in {-1, 0, 1}, [C]: 1 if the member with + predicts better."""
        return torch.from_numpy(np.sign(losses[:, 1] - losses[:, 0])).to(device)


def annealed(initial: float, halved_at: float | None, update: int, updates: int) -> float:
    """Return the current value of alpha or of the step in a run of `updates` updates.

    initial / (1 + update / (halved_at updates)), or the initial value if `halved_at` is None. The law is that of the
    original's alpha (ESHyperscale/nano-egg, `run.py`): 1 / ((2^a - 1) t / 1000 + 1) with a = 4 over 1,000 updates by
    default, here initial = 1 and halved_at = 1/15. The original's step, one integer, is constant.
    """
    return initial if halved_at is None else initial / (1 + update / (halved_at * updates))


def stream_offsets(total: int, streams: int, tokens: int, update: int) -> NDArray[np.int64]:
    """Return the position where each stream reads at an update; int64 [S].

    A text of `total` bytes is cut into S contiguous segments of equal length, and each into chunks of T bytes. Update e
    (from 0) reads chunk e modulo their number; each byte read is an input, the byte after it a target.

    Raises:
        ValueError: if a segment is shorter than a chunk.
    """
    segment = (total - 1) // streams
    if segment < tokens:
        raise ValueError(f"{total} bytes are too few for {streams} streams of at least {tokens} bytes")
    return np.arange(streams, dtype=np.int64) * segment + (update % (segment // tokens)) * tokens


def read_streams(text: NDArray[np.uint8], streams: int, tokens: int, update: int) -> NDArray[np.uint8]:
    """Read the bytes of an update and the byte after those of each stream; uint8 [S, T + 1]."""
    offsets = stream_offsets(len(text), streams, tokens, update)
    return np.asarray(text[offsets[:, None] + np.arange(tokens + 1)])
