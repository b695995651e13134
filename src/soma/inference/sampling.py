"""Drawing a byte from a distribution: temperature, top-k, top-p, and a stream of counted random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.rng import Stream


@dataclass(frozen=True)
class Sampling:
    """How bytes are drawn."""

    temperature: float = 1.0
    """Probabilities are raised to 1/temperature; 0 takes the likeliest byte."""
    top_k: int | None = None
    """Only that many likeliest bytes can be drawn; None: all."""
    top_p: float | None = None
    """Only the fewest likeliest bytes that hold this probability can be drawn; None: all."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise SomaError(f"the temperature is {self.temperature}; give a number from 0 (the likeliest byte) up.")
        if self.top_k is not None and not 1 <= self.top_k <= 256:
            raise SomaError(f"top-k is {self.top_k}; give a number of bytes from 1 to 256.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise SomaError(f"top-p is {self.top_p}; give a probability above 0 and up to 1.")

    def distribution(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """What is drawn from, [V]: temperature first, then top-k, then top-p of what is left; a tie keeps lower bytes.

        Args:
            probabilities: of the ensemble, [V].
        """
        if self.temperature == 0:
            out = np.zeros_like(probabilities)
            out[probabilities.argmax()] = 1
            return out
        with np.errstate(divide="ignore"):
            scaled = np.log(probabilities) / self.temperature
        out = np.exp(scaled - scaled.max())
        order = np.argsort(-out, kind="stable")
        if self.top_k is not None:
            out[order[self.top_k :]] = 0
        out /= out.sum()
        if self.top_p is not None:
            # A byte stays if those before it hold less than top_p, so the likeliest always does.
            before = np.cumsum(out[order]) - out[order]
            out[order[before >= self.top_p]] = 0
            out /= out.sum()
        return out

    def draw(self, probabilities: NDArray[np.float64], position: int) -> int:
        """The byte at a position of the sample: a function of seed, position and probabilities alone."""
        total = np.cumsum(self.distribution(probabilities))
        u = Stream.named(self.seed, "sample").uniform(1, update=position)[0]
        return int(np.searchsorted(total, u * total[-1], side="right"))
