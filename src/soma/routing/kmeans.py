"""Balanced spherical k-means: clusters on the unit sphere whose sizes differ by at most one.

The E-step is a transport problem: maximise Σ x·c over labels with (almost) equal cluster sizes. Its dual has one price
per cluster, and at the optimal prices every sample simply takes argmax(x·c − p). The prices are found with entropic
regularisation (Sinkhorn scaling; Cuturi, "Sinkhorn distances", NeurIPS 2013), which needs only the soft load of each
cluster, and the labels are then rounded: an overfull cluster gives up the samples that lose least.

Shapes: N samples, K clusters, D dimensions, R samples in one block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from soma.errors import SomaError
from soma.numerics.groups import rank_within
from soma.numerics.rng import Stream

_BLOCK = 4096
_ANNEALED = (0.1, 0.05, 0.02, 0.01)  # temperatures in units of cosine; later rounds are warm-started at the last one
_STEPS = 30  # maximum number of Sinkhorn steps per temperature
_LOAD_ERROR = 0.01  # soft loads this close to N/K are good enough: rounding fixes the rest
_SETTLED = 1e-5  # stop after a round that raises the mean cosine by less


@dataclass(frozen=True)
class BalancedFit:
    """Centroids with their prices and labels."""

    centroids_KD: NDArray[np.float32]
    """Unit rows."""
    prices_K: NDArray[np.float32]
    """argmax(x·c − price) gives clusters of nearly equal size; mean zero."""
    labels_N: NDArray[np.uint16]
    """The balanced labels."""
    sizes_K: NDArray[np.int64]
    """⌊N/K⌋ or ⌈N/K⌉ each."""
    objective: tuple[float, ...]
    """Mean cosine between a sample and its centroid after each round; never decreases."""


def similarities(x_ND: NDArray[np.float32], centroids_KD: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute x·c for every sample and cluster, float32 (N, K).

    A sample's similarities should depend neither on its neighbours nor on chunking, cores or the processor, but BLAS
    adds in another order at edges, and on some processors at every place of a block. So the sums are float64, in blocks
    of one shape and one thread, and rounded: their order shows only within 1e-15 of the middle of two float32 numbers.
    """
    s_NK = np.empty((len(x_ND), len(centroids_KD)), np.float32)
    c_DK = np.ascontiguousarray(centroids_KD.T, np.float64)
    x_RD = np.zeros((_BLOCK, x_ND.shape[1]))
    with threadpool_limits(1):
        for start in range(0, len(x_ND), _BLOCK):
            rows = x_ND[start : start + _BLOCK]
            x_RD[: len(rows)] = rows
            s_NK[start : start + _BLOCK] = (x_RD @ c_DK)[: len(rows)]
    return s_NK


def balanced_kmeans(x_ND: NDArray[np.float32], k: int, stream: Stream, iterations: int) -> BalancedFit:
    """Fit K centroids to unit rows so that every cluster holds ⌊N/K⌋ or ⌈N/K⌉ of them.

    The (N, K) similarities are kept in memory: 0.4 GB for 400,000 samples and 256 clusters.

    Args:
        x_ND: float32 unit rows.
        k: number of clusters.
        stream: randomness of the initial centroids.
        iterations: maximum number of rounds; fitting stops earlier if a round no longer raises the objective.

    Raises:
        SomaError: there are more clusters than samples, or than a 16-bit label can represent.
    """
    if k > min(len(x_ND), 1 << 16):
        raise SomaError(
            f"{k} clusters cannot be fitted to {len(x_ND)} windows; use fewer experts, a larger corpus "
            "or a larger routing.sample."
        )
    with threadpool_limits(1):
        best = _assign(x_ND, _initial(x_ND, k, stream), np.zeros(k), _ANNEALED)
        trace = [best.objective[0]]
        for _ in range(iterations):
            centroids_KD = _means(x_ND, best.labels_N, best.centroids_KD)
            fit = _assign(x_ND, centroids_KD, best.prices_K.astype(np.float64), _ANNEALED[-1:])
            gain = fit.objective[0] - best.objective[0]
            if gain > 0:
                best = fit
                trace.append(fit.objective[0])
            if gain < _SETTLED:
                break
    return BalancedFit(best.centroids_KD, best.prices_K, best.labels_N, best.sizes_K, tuple(trace))


def _initial(x_ND: NDArray[np.float32], k: int, stream: Stream) -> NDArray[np.float32]:
    """Initialise by k-means++ on the sphere: draw each next centroid in proportion to squared distance, 2(1 − cos)."""
    draws_K = stream.uniform(k)
    chosen = [int(draws_K[0] * len(x_ND))]
    distance_N = np.full(len(x_ND), np.inf)
    for draw in draws_K[1:]:
        distance_N = np.minimum(distance_N, np.maximum(1 - x_ND @ x_ND[chosen[-1]], 0))
        total_N = np.cumsum(distance_N)
        drawn = int(np.searchsorted(total_N, draw * total_N[-1], side="right"))
        chosen.append(min(drawn, len(x_ND) - 1))  # past the end: rounding, or every sample equals a centroid
    return x_ND[chosen].copy()


def _means(
    x_ND: NDArray[np.float32], labels_N: NDArray[np.uint16], previous_KD: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Perform the M-step: return the normalised mean of each cluster, or its previous centroid if the mean is zero."""
    order_N = np.argsort(labels_N, kind="stable")
    ends = np.cumsum(np.bincount(labels_N, minlength=len(previous_KD)))
    sums_KD = np.stack([x_ND[rows].sum(axis=0, dtype=np.float64) for rows in np.split(order_N, ends[:-1])])
    norms_K1 = np.linalg.norm(sums_KD, axis=1, keepdims=True)
    return np.where(norms_K1 > 1e-6, sums_KD / np.maximum(norms_K1, 1e-6), previous_KD).astype(np.float32)


def _assign(
    x_ND: NDArray[np.float32],
    centroids_KD: NDArray[np.float32],
    prices_K: NDArray[np.float64],
    temperatures: tuple[float, ...],
) -> BalancedFit:
    """Perform the E-step: find prices, then labels with cluster sizes that differ by at most one."""
    s_NK = similarities(x_ND, centroids_KD)
    for temperature in temperatures:
        prices_K = _sinkhorn(s_NK, prices_K, temperature)
    labels_N = _round(s_NK, prices_K.astype(np.float32))
    objective = float(np.take_along_axis(s_NK, labels_N[:, None], axis=1).mean(dtype=np.float64))
    sizes_K = np.bincount(labels_N, minlength=len(prices_K))
    return BalancedFit(centroids_KD, prices_K.astype(np.float32), labels_N.astype(np.uint16), sizes_K, (objective,))


def _sinkhorn(s_NK: NDArray[np.float32], prices_K: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Adjust prices to the load, p += τ log(load/target), with soft labels of temperature τ."""
    target = len(s_NK) / len(prices_K)
    for _ in range(_STEPS):
        load_K = np.zeros(len(prices_K))
        for start in range(0, len(s_NK), _BLOCK):
            z_RK = (s_NK[start : start + _BLOCK] - prices_K.astype(np.float32)) * np.float32(1 / temperature)
            z_RK -= z_RK.max(axis=1, keepdims=True)
            np.exp(z_RK, out=z_RK)
            z_RK /= z_RK.sum(axis=1, keepdims=True)
            load_K += z_RK.sum(axis=0, dtype=np.float64)
        ratio_K = load_K / target
        if np.abs(ratio_K - 1).max() < _LOAD_ERROR:
            break
        prices_K = prices_K + temperature * np.log(np.maximum(ratio_K, 1e-3))  # finite step for an empty cluster
        prices_K -= prices_K.mean()
    return prices_K


def _round(s_NK: NDArray[np.float32], prices_K: NDArray[np.float32]) -> NDArray[np.int64]:
    """Take argmax(s − p), then let overfull clusters move their samples of smallest regret to clusters with room.

    Ends after at most K rounds: a round either moves all the overflow or fills a cluster.
    """
    n, k = s_NK.shape
    labels_N = np.concatenate([(s_NK[a : a + _BLOCK] - prices_K).argmax(axis=1) for a in range(0, n, _BLOCK)])
    # N mod K clusters hold one sample more: those with the highest price, the value of one more place.
    capacity_K = np.full(k, n // k)
    capacity_K[np.argsort(-prices_K, kind="stable")[: n % k]] += 1
    while ((sizes_K := np.bincount(labels_N, minlength=k)) > capacity_K).any():
        room = np.flatnonzero(sizes_K < capacity_K)
        rows = np.flatnonzero((sizes_K > capacity_K)[labels_N])
        there = s_NK[np.ix_(rows, room)] - prices_K[room]
        destination = room[there.argmax(axis=1)]
        here = s_NK[rows, labels_N[rows]] - prices_K[labels_N[rows]]
        order = np.argsort(here - there.max(axis=1), kind="stable")
        rows, destination = rows[order], destination[order]
        leaving = rank_within(labels_N[rows]) < (sizes_K - capacity_K)[labels_N[rows]]
        rows, destination = rows[leaving], destination[leaving]
        entering = rank_within(destination) < (capacity_K - sizes_K)[destination]
        labels_N[rows[entering]] = destination[entering]
    return labels_N
