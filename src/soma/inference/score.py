"""Scoring of a text: its windows, and the interval of its mean loss.

Shapes: n windows, W window bytes, R routed prefix bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.numerics.rng import Stream

_DRAWS = 1000
_NUMBERS = 1 << 18  # random numbers held in memory at once
_DOCUMENTS = 10
"""With fewer documents, an interval over documents says little, so windows are resampled instead."""


@dataclass(frozen=True)
class Score:
    """The loss of one or several texts, with a 95 % interval."""

    nats: float
    """Nats per byte."""
    low: float
    """Ends of the interval of `nats`; NaN with fewer than two units to resample."""
    high: float
    bytes: int
    """Scored bytes."""
    windows: int
    unit: str
    """Unit that the bootstrap resamples: `windows` or `documents`."""
    sums: NDArray[np.float64] = field(compare=False, repr=False)
    """Nats and bytes of each window, [n, 2]."""

    @property
    def bits(self) -> float:
        """Bits per byte."""
        return self.nats / float(np.log(2))


def cut(text: bytes, window: int, prefix: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """Cut windows [n, W + 1] at a stride of W - R bytes, and a shorter last one [1, ...] if bytes are left.

    Every byte from R + 1 on is scored once.

    Raises:
        SomaError: if there are fewer than R + 2 bytes.
    """
    data = np.frombuffer(text, np.uint8)
    if not len(data):
        raise SomaError("the text is empty; there is nothing to score.")
    if len(data) < prefix + 2:
        raise SomaError(
            f"the text has {len(data)} bytes, too few to score: the first {prefix} are routed and the next is an "
            f"input, so it needs at least {prefix + 2}."
        )
    step = window - prefix
    whole = (len(data) - prefix - 1) // step
    starts = np.arange(whole) * step
    windows = (
        np.lib.stride_tricks.sliding_window_view(data, window + 1)[starts]
        if whole
        else np.empty((0, window + 1), np.uint8)
    )
    rest = data[whole * step :]
    return np.ascontiguousarray(windows), rest[None].copy() if len(rest) > prefix + 1 else None


def score_windows(losses: Sequence[NDArray[np.float64]]) -> Score:
    """Compute the mean loss of one text's windows from the nats of every scored byte of each."""
    sums = np.array([[row.sum(), len(row)] for row in losses])
    return _score(sums, sums, "windows")


def total(scores: Sequence[Score]) -> Score:
    """Combine the scores of all texts, resampling documents if there are enough of them, else windows."""
    sums = np.concatenate([score.sums for score in scores])
    if len(scores) < _DOCUMENTS:
        return _score(sums, sums, "windows")
    return _score(sums, np.array([score.sums.sum(axis=0) for score in scores]), "documents")


def _score(sums: NDArray[np.float64], units: NDArray[np.float64], name: str) -> Score:
    """Bootstrap a percentile interval of the ratio of summed nats to summed bytes over `units`, [u, 2]."""
    low = high = float("nan")
    if len(units) > 1:
        ratios = []
        together = max(1, _NUMBERS // len(units))  # draws at once
        for first in range(0, _DRAWS, together):
            draws = np.arange(first, min(first + together, _DRAWS))
            chosen = Stream.named(0, "score").integers(len(units), len(units), update=draws)
            drawn = units[chosen].sum(axis=1)
            ratios.extend(drawn[:, 0] / drawn[:, 1])
        low, high = (float(q) for q in np.quantile(ratios, [0.025, 0.975]))
    nats, count = sums.sum(axis=0)
    return Score(float(nats / count), low, high, int(count), len(sums), name, sums)
