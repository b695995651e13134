from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from soma.errors import SomaError
from soma.numerics.rng import Stream
from soma.routing.kmeans import BalancedFit, balanced_kmeans, similarities

Floats = NDArray[np.float32]


def unit(x: NDArray[np.float64]) -> Floats:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def blobs(sizes: list[int], noise: float = 0.2, d: int = 16, seed: int = 0) -> tuple[Floats, NDArray[np.int64]]:
    """Draw noisy copies of orthogonal directions."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    normal = Stream.named(seed, "blobs").normal(len(truth) * d).reshape(-1, d)
    return unit(np.eye(d)[truth] + noise * normal), truth


def cloud(n: int, d: int = 6, seed: int = 0) -> Floats:
    """Draw one lopsided cloud without clusters, the hard case for balance."""
    return unit(Stream.named(seed, "cloud").normal(n * d).reshape(n, d) + 0.5)


def fit(x_ND: Floats, k: int, seed: int = 0, iterations: int = 30) -> BalancedFit:
    return balanced_kmeans(x_ND, k, Stream.named(seed, "test"), iterations)


def optimum(s_NK: Floats) -> float:
    """Compute the largest mean similarity of a balanced labelling exactly, as an assignment of samples to places.

    Each cluster has ⌊N/K⌋ places, and N mod K clusters have one more; every choice of these clusters is tried.
    """
    n, k = s_NK.shape
    best = -np.inf
    for dearer in combinations(range(k), n % k):
        places = np.concatenate([np.repeat(np.arange(k), n // k), np.array(dearer, int)])
        i, j = linear_sum_assignment(-s_NK[:, places])
        best = max(best, float(s_NK[i, places[j]].mean(dtype=np.float64)))
    return best


@pytest.mark.parametrize(("n", "k"), [(40, 8), (41, 8), (47, 8), (60, 4), (11, 4)])
def test_labels_are_close_to_the_exact_optimum(n: int, k: int) -> None:
    gaps = []
    for seed in range(12):
        x_ND = cloud(n, seed=seed)
        got = fit(x_ND, k, iterations=3)
        best = optimum(similarities(x_ND, got.centroids_KD))
        gaps.append((best - got.objective[-1]) / best)
    assert min(gaps) > -1e-6
    assert max(gaps) < 0.03
    assert np.mean(gaps) < 0.004


def test_labels_are_optimal_where_clusters_are_clear() -> None:
    x_ND, truth = blobs([10] * 4)
    got = fit(x_ND, 4)
    assert got.objective[-1] == pytest.approx(optimum(similarities(x_ND, got.centroids_KD)), abs=1e-6)
    assert len(set(zip(truth.tolist(), got.labels_N.tolist(), strict=True))) == 4


def test_the_prices_bound_the_gap_at_a_size_that_no_exact_solver_is_needed_for() -> None:
    x_ND = cloud(4000, d=12)
    got = fit(x_ND, 16, iterations=5)
    # Weak duality: for any p, no labelling of equal sizes exceeds mean max(s − p) + mean p.
    bound = (similarities(x_ND, got.centroids_KD) - got.prices_K).max(axis=1).mean() + got.prices_K.mean()
    assert -1e-6 < bound - got.objective[-1] < 0.001 * bound


@pytest.mark.parametrize(("n", "k"), [(407, 8), (400, 8), (41, 8), (9, 9), (10, 9), (17, 9), (30, 1), (5000, 7)])
def test_sizes_differ_by_at_most_one(n: int, k: int) -> None:
    got = fit(cloud(n), k, iterations=4)
    assert got.sizes_K.sum() == n
    assert set(got.sizes_K.tolist()) == {n // k, -(-n // k)}
    np.testing.assert_array_equal(np.bincount(got.labels_N, minlength=k), got.sizes_K)
    np.testing.assert_allclose(np.linalg.norm(got.centroids_KD, axis=1), 1, atol=1e-6)


def test_one_cluster_is_the_mean_direction() -> None:
    x_ND = cloud(50)
    np.testing.assert_allclose(fit(x_ND, 1).centroids_KD, unit(x_ND.mean(axis=0, dtype=float)[None]), atol=1e-6)


def test_a_repeat_is_bitwise_equal_on_any_number_of_threads() -> None:
    x_ND = cloud(6000, d=32)
    with threadpool_limits(1):
        a = fit(x_ND, 16, iterations=5)
    with threadpool_limits(2):
        b = fit(x_ND, 16, iterations=5)
    for field in ("centroids_KD", "prices_K", "labels_N"):
        assert getattr(a, field).tobytes() == getattr(b, field).tobytes()
    assert a.objective == b.objective
    assert fit(x_ND, 16, seed=1, iterations=5).labels_N.tobytes() != a.labels_N.tobytes()


def test_similarities_do_not_depend_on_the_neighbours() -> None:
    x_ND, c_KD = cloud(5000, d=32), cloud(17, d=32, seed=1)
    s_NK = similarities(x_ND, c_KD)
    np.testing.assert_allclose(s_NK, x_ND.astype(float) @ c_KD.T.astype(float), atol=1e-6)
    for start, stop in [(0, 1), (3, 20), (4095, 4099), (17, 5000)]:
        assert similarities(x_ND[start:stop], c_KD).tobytes() == s_NK[start:stop].tobytes()


@pytest.mark.parametrize("seed", range(5))
def test_the_objective_never_decreases_and_is_that_of_the_result(seed: int) -> None:
    x_ND = cloud(1500, d=12, seed=seed)
    got = fit(x_ND, 8, seed=seed)
    assert (np.diff(got.objective) > 0).all()
    assert got.objective[-1] > got.objective[0] + 0.01
    assert len(got.objective) <= 31
    s_NK = similarities(x_ND, got.centroids_KD)
    assert got.objective[-1] == pytest.approx(s_NK[np.arange(1500), got.labels_N].mean(dtype=float), abs=1e-9)


def test_it_settles_on_planted_clusters() -> None:
    x_ND, truth = blobs([100] * 6)
    got = fit(x_ND, 6)
    assert len(got.objective) < 10
    assert len(set(zip(truth.tolist(), got.labels_N.tolist(), strict=True))) == 6


def test_prices_balance_what_nearest_does_not() -> None:
    got = fit(x_ND := cloud(2000), 8)
    s_NK = similarities(x_ND, got.centroids_KD)
    nearest, priced = (np.bincount(s.argmax(axis=1), minlength=8) for s in (s_NK, s_NK - got.prices_K))
    assert np.abs(priced - 250).max() < 10
    assert np.abs(nearest - 250).max() > 25


def test_duplicates_and_opposites() -> None:
    same = fit(np.tile(cloud(1), (12, 1)), 5)
    assert sorted(same.sizes_K.tolist()) == [2, 2, 2, 3, 3]
    assert same.objective[-1] == pytest.approx(1)
    few = fit(np.repeat(cloud(2), 6, axis=0), 4)
    assert few.objective[-1] == pytest.approx(1)
    opposite = cloud(1)
    got = fit(np.concatenate([opposite, -opposite]), 1)  # the mean is zero, so it has no direction
    assert np.isfinite(got.centroids_KD).all()


def test_more_clusters_than_windows_is_one_sentence() -> None:
    with pytest.raises(SomaError, match="9 clusters cannot be fitted to 8 windows"):
        fit(cloud(8), 9)
