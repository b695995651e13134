"""Scoring of a text: its windows, and the interval of its mean loss.

Shapes: n windows, W window bytes, R routed prefix bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

import numpy as np
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.numerics.rng import Stream

_DRAWS = 1000
_READ = 1 << 22  # bytes of text held in memory at once
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


def windows_of(text: IO[bytes], window: int, prefix: int) -> Iterator[NDArray[np.uint8]]:
    """Read a text as windows [n, W + 1] at a stride of W - R bytes, and a shorter last one [1, ...] if bytes are left.

    Every byte from R + 1 on is in one window's scored part. Memory is bounded, however long the text is.

    Raises:
        SomaError: if there are fewer than R + 2 bytes.
    """
    step, data = window - prefix, b""
    together = step * max(1, _READ // step)
    enough = False
    while some := text.read(together):
        data += some
        whole = (len(data) - prefix - 1) // step
        if whole > 0:
            rows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), window + 1)
            yield np.ascontiguousarray(rows[: whole * step : step])
            data, enough = data[whole * step :], True
    if len(data) > prefix + 1:
        yield np.frombuffer(data, np.uint8)[None].copy()
    elif not data:
        raise SomaError("the text is empty; there is nothing to score.")
    elif not enough:
        raise SomaError(
            f"the text has {len(data)} bytes, too few to score: the first {prefix} are routed and the next is an "
            f"input, so it needs at least {prefix + 2}."
        )


def score_windows(losses: Iterable[NDArray[np.float64]]) -> Score:
    """Compute the mean loss of one text from batches of its windows: the nats of every scored byte, [n, S] each.

    Raises:
        SomaError: if a loss is not a number.
    """
    sums = np.concatenate([np.stack([rows.sum(axis=1), np.full(len(rows), rows.shape[1])], 1) for rows in losses])
    if not np.isfinite(sums).all():
        raise SomaError("the losses are not numbers; the model's weights are damaged or diverged.")
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
