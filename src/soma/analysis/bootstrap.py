"""Paired bootstrap over documents: 95 % intervals of mean losses and of their differences.

Arms are scored on the same documents, so every draw resamples documents once and gives all arms the same sample; this
removes shared variation from the interval of a difference. A loss is a ratio, summed nats over summed bytes.

Shapes: R draws, n documents, C columns (runs, milestones, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.numerics.rng import Stream

_CHUNK = 500  # draws whose counts are held in memory at once


@dataclass(frozen=True)
class Interval:
    """A mean with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


class DocumentBootstrap:
    """Seeded resamples of one set of documents."""

    def __init__(self, weights: NDArray[np.float64], draws: int, stream: Stream) -> None:
        """Prepare resampling of documents with `weights` scored bytes each, [n]."""
        self.weights, self.draws, self.stream = weights, draws, stream

    def ratios(self, nats: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute mean nats per byte in every draw, [R, C], from summed document losses [n, C].

        All columns see the same documents in a draw, so the draws of a difference are the difference of two columns.
        """
        n = len(self.weights)
        out = np.empty((self.draws, nats.shape[1]))
        for first in range(0, self.draws, _CHUNK):
            draws = np.arange(first, min(first + _CHUNK, self.draws))
            chosen = self.stream.integers(n, n, update=draws)
            counts = np.stack([np.bincount(row, minlength=n) for row in chosen]).astype(np.float64)
            out[draws] = (counts @ nats) / (counts @ self.weights)[:, None]
        return out


def percentile_interval(mean: float, draws: NDArray[np.float64]) -> Interval:
    """Return the 95 % percentile interval of bootstrap draws around a mean."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(mean, float(low), float(high))


def seed_interval(values: NDArray[np.float64]) -> Interval | None:
    """Return the Student-t 95 % interval of a mean over seeds; None with fewer than two seeds."""
    if len(values) < 2:
        return None
    from scipy.special import stdtrit  # imported here because it takes as long as all other imports of this module

    mean = float(values.mean())
    half = float(stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)


def over_runs(values: Sequence[float] | pd.Series) -> tuple[float, Interval | None] | None:
    """Return the geometric mean over runs of a positive quantity, such as a time, with its 95 % interval.

    The Student-t interval is that of the mean logarithm, so its ends are positive too. A single run has no interval,
    nor have runs of which one has the value 0, whose arithmetic mean is returned. None if a run has no value.
    """
    per_run = np.asarray(values, dtype=np.float64)
    if not len(per_run) or np.isnan(per_run).any():
        return None
    if (per_run <= 0).any():
        return float(per_run.mean()), None
    interval = seed_interval(np.log(per_run))
    if interval is None:
        return float(per_run[0]), None
    mean, low, high = (float(np.exp(end)) for end in (interval.mean, interval.low, interval.high))
    return mean, Interval(mean, low, high)


def interval_columns(value: str, interval: Interval, over_seeds: Interval | None) -> dict[str, Any]:
    """Return the columns of a value: its name, `low`, `high` over documents, `seed_low`, `seed_high` over seeds."""
    nan = float("nan")
    return {
        value: interval.mean,
        "low": interval.low,
        "high": interval.high,
        "seed_low": over_seeds.low if over_seeds else nan,
        "seed_high": over_seeds.high if over_seeds else nan,
    }
