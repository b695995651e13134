"""Order within groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rank_within(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the earlier elements of the same group, for each element; groups are small numbers from 0."""
    order = np.argsort(groups, kind="stable")
    counts = np.bincount(groups)
    starts = np.cumsum(counts) - counts
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups)) - starts[groups[order]]
    return rank
