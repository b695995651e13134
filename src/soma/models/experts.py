"""LSTM experts as one value, which every forward pass takes: their sizes, bodies and heads.

Shapes: E experts, M parameters of a body, V = 256 bytes, H embedding width, P copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from soma.models.spec import VOCABULARY, LSTMSpec


@dataclass(frozen=True, eq=False)
class Experts:
    """Experts of one size, or perturbed copies of one expert.

    There is always one head per expert. A head that all experts share is a view with a first stride of 0 (`of`), which
    takes the memory of one.
    """

    spec: LSTMSpec
    theta: Tensor
    """Bodies [E, M], of any floating dtype."""
    head: Tensor
    """Tied heads [E, V, H]."""

    def __post_init__(self) -> None:
        n = len(self.theta)
        if self.theta.shape != (n, self.spec.size) or self.head.shape != (n, VOCABULARY, self.spec.embedding):
            shapes = f"bodies {tuple(self.theta.shape)} and heads {tuple(self.head.shape)}"
            raise ValueError(f"{shapes} are not {n} experts of {self.spec}")

    @classmethod
    def of(cls, spec: LSTMSpec, theta: Tensor, head: Tensor) -> Experts:
        """Take bodies [E, M] and either heads [E, V, H] or one head [1, V, H] that all share."""
        return cls(spec, theta, head.expand(len(theta), -1, -1) if len(head) == 1 else head)

    def __len__(self) -> int:
        """Return the number of experts (E)."""
        return len(self.theta)

    def __getitem__(self, which: int | slice) -> Experts:
        """Return a view of some experts; a number selects one, which keeps its leading axis."""
        if isinstance(which, int):
            first = range(len(self))[which]
            which = slice(first, first + 1)
        return Experts(self.spec, self.theta[which], self.head[which])

    def __iter__(self) -> Iterator[Experts]:
        """Yield the experts one by one."""
        return (self[e] for e in range(len(self)))

    @property
    def shares_head(self) -> bool:
        """True if several experts have one head."""
        return len(self) > 1 and self.head.stride(0) == 0

    @property
    def distinct_heads(self) -> Tensor:
        """Heads [E, V, H], or [1, V, H] if all experts share one."""
        return self.head[:1] if self.shares_head else self.head

    @property
    def parameters(self) -> int:
        """Number of parameters; a shared head counts once."""
        return self.theta.numel() + self.distinct_heads.numel()

    def to(self, target: torch.device | torch.dtype) -> Experts:
        """Convert to a device or a dtype; a shared head stays shared."""
        return Experts.of(self.spec, self.theta.to(target), self.distinct_heads.to(target))

    def copies(self, theta: Tensor) -> Experts:
        """Return copies of one expert (E = 1) with other bodies [P, M], which share its head."""
        return Experts.of(self.spec, theta, self.head)
