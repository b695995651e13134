"""Sampling of a byte from a distribution: temperature, top-k, top-p, and counter-based random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.numerics.rng import Stream


@dataclass(frozen=True)
class Sampling:
    """Settings for drawing bytes."""

    temperature: float = 1.0
    """Probabilities are raised to 1/temperature; 0 takes the likeliest byte."""
    top_k: int | None = None
    """Draw only among the k likeliest bytes; None: among all."""
    top_p: float | None = None
    """Draw only among the fewest likeliest bytes that reach this probability; None: among all."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise SomaError(f"the temperature is {self.temperature}; give 0 (the likeliest byte) or a larger number.")
        if self.top_k is not None and not 1 <= self.top_k <= 256:
            raise SomaError(f"top-k is {self.top_k}; give a number of bytes from 1 to 256.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SomaError(f"top-p is {self.top_p}; give a probability above 0 and up to 1.")

    def distribution(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Apply temperature, then top-k, then top-p to what remains, [V]; ties keep lower bytes.

        Args:
            probabilities: the ensemble's probabilities, [V].
        """
        if self.temperature == 0:
            out = np.zeros_like(probabilities)
            out[probabilities.argmax()] = 1
            return out
        with np.errstate(divide="ignore", over="ignore"):
            logs = np.log(probabilities)
            out = np.exp((logs - logs.max()) / self.temperature)  # a tiny temperature leaves the likeliest alone
        order = np.argsort(-out, kind="stable")
        if self.top_k is not None:
            out[order[self.top_k :]] = 0
        out /= out.sum()
        if self.top_p is not None:
            # A byte stays if the likelier ones sum to less than top_p, so the likeliest always stays.
            before = np.cumsum(out[order]) - out[order]
            out[order[before >= self.top_p]] = 0
            out /= out.sum()
        return out

    def draw(self, probabilities: NDArray[np.float64], position: int) -> int:
        """Draw the byte at a position of the sample, as a function of only seed, position and probabilities."""
        total = np.cumsum(self.distribution(probabilities))
        u = Stream.named(self.seed, "sample").uniform(1, update=position)[0]
        return int(np.searchsorted(total, u * total[-1], side="right"))
