"""What runs the experts: pairs of an expert and a sequence, in groups of one expert, with or without a carried state.

Shapes: N experts, M parameters of a body, V = 256 bytes, H embedding width, n sequences, P pairs, T bytes read,
S scored positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from soma.models.spec import LSTMSpec


class Runner(ABC):
    """The experts of one ensemble, ready to run; bodies [N, M] and heads [N, V, H], or [1, V, H] shared by all."""

    name: str

    def __init__(self, spec: LSTMSpec, bodies: Tensor, heads: Tensor) -> None:
        self.spec, self.experts = spec, len(bodies)
        if bodies.shape[1:] != (spec.size,) or heads.shape[1:] != (256, spec.embedding):
            raise ValueError(f"bodies {tuple(bodies.shape)} and heads {tuple(heads.shape)} are not of {spec}")
        if len(heads) not in (1, len(bodies)):
            raise ValueError(f"{len(heads)} heads for {len(bodies)} experts")

    @abstractmethod
    def losses(
        self, expert: NDArray[np.integer], sequence: NDArray[np.integer], tokens: NDArray[np.uint8], scored: int
    ) -> NDArray[np.float64]:
        """Nats of the last `scored` bytes of each pair, read from the zero state; float64 [P, S].

        Args:
            expert: of each pair, [P]; pairs of one expert lie together.
            sequence: row of `tokens` of each pair, [P].
            tokens: bytes [n, T + 1].
        """

    @abstractmethod
    def start(self, pairs: int) -> Any:
        """Zero states of that many pairs, for `advance`."""

    @abstractmethod
    def advance(self, expert: NDArray[np.integer], tokens: NDArray[np.uint8], state: Any) -> NDArray[np.float64]:
        """Each pair reads bytes [P, T]; its state moves on in place.

        Args:
            expert: of each pair, [P]; pairs of one expert lie together.

        Returns:
            Probabilities of every byte to come next, float64 [P, V], each row with the sum 1.
        """


def grouped(selected: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """The pairs of selected experts [n, K], in groups of one expert.

    Returns:
        expert and sequence of each pair, [n K] each, and where the pair's (sequence, rank) lies in the flat `selected`.
    """
    flat = np.ascontiguousarray(selected).reshape(-1)
    order = np.argsort(flat, kind="stable")
    return flat[order].astype(np.int32), (order // selected.shape[1]).astype(np.int32), order
