"""Runners of experts: pairs of an expert and a sequence, grouped by expert, with or without a carried state.

Shapes: N experts, V = 256 bytes, n sequences, P pairs, T bytes read, S scored positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Runner(ABC):
    """The experts of one ensemble, ready to run."""

    name: str

    @abstractmethod
    def losses(
        self, expert: NDArray[np.integer], sequence: NDArray[np.integer], tokens: NDArray[np.uint8], scored: int
    ) -> NDArray[np.float64]:
        """Compute nats of the last `scored` bytes of each pair, read from the zero state; float64 [P, S].

        Args:
            expert: expert of each pair, [P]; pairs of one expert are adjacent.
            sequence: row of `tokens` for each pair, [P].
            tokens: bytes [n, T + 1].
        """

    @abstractmethod
    def start(self, pairs: int) -> Any:
        """Return zero states of `pairs` pairs, for `advance`."""

    @abstractmethod
    def advance(self, expert: NDArray[np.integer], tokens: NDArray[np.uint8], state: Any) -> NDArray[np.float64]:
        """Read bytes [P, T] with each pair, updating its state in place.

        Args:
            expert: expert of each pair, [P]; pairs of one expert are adjacent.

        Returns:
            Next-byte probabilities, float64 [P, V]; each row sums to 1.
        """


def grouped(selected: NDArray[np.integer]) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
    """Group the pairs of selected experts [n, K] by expert.

    Returns:
        Expert and sequence of each pair, and the pair's index (sequence, rank) into the flat `selected`; [n K] each.
    """
    flat = np.ascontiguousarray(selected).reshape(-1)
    order = np.argsort(flat, kind="stable")
    return flat[order].astype(np.int32), (order // selected.shape[1]).astype(np.int32), order
