import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from soma.estimators.spsa import estimate
from soma.forward.probes import Probes
from soma.forward.torch_engine import TorchEngine
from soma.measurements.gradients import exact_gradients
from soma.measurements.reference import _untrained, cosine_distance, estimate_errors
from soma.numerics.rng import Stream
from tests.measurements.problem import SPEC, assert_near, ensemble
from tests.training.small_runs import spec, trainer

TORCH = TorchEngine(torch.device("cpu"))
TIMES = ["aggregate_seconds", "elapsed_seconds"]


def text(expert, index):
    """Return two sequences of five bytes."""
    bytes_ = 97 + Stream.named(3, "text").integers(10, 16, expert=expert, direction=index)
    return bytes_.astype(np.uint8).reshape(2, 5)


def one_text(expert, _):
    return text(expert, 0)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_against_estimates_one_by_one(kind):
    experts, _ = ensemble(2, 1)
    settings = [(3, 2), (2, 6), (4, 1)]
    rows = estimate_errors(TORCH, experts, text, settings, 3, 8, 1e-3, 5, kind, torch.float64)
    halves = [
        exact_gradients(experts, np.stack([np.concatenate([text(e, i) for i in part]) for e in (0, 1)]))
        for part in (range(4), range(4, 8))
    ]
    g = (halves[0] + halves[1]) / 2
    expected = 1 - np.corrcoef(halves[0].ravel(), halves[1].ravel())[0, 1]  # the mean is nearly zero
    assert rows.cosine_distance[0] == pytest.approx(expected, rel=0.05)
    assert rows.cosine_distance.nunique() == 1
    assert (
        rows.reference_error.to_list() == [pytest.approx(((halves[0] - halves[1]) ** 2).sum() / 4 / (g**2).sum())] * 3
    )
    for row, (n, b) in zip(rows.itertuples(), settings, strict=True):
        errors = []
        for repeat in range(3):
            blocks = range(8 + 3 * repeat, 8 + 3 * repeat + max(1, b // 2))
            batch = np.stack([np.concatenate([text(e, i) for i in blocks])[:b] for e in (0, 1)])
            probes = Probes(SPEC, Stream.named(5, "reference", "probe"), kind, repeat, (0, 1), range(n))
            x = estimate(TORCH, experts, [batch], [probes], [1e-3] * 2).gradient
            errors.append(((x - g) ** 2).sum() / (g**2).sum())
        assert row.error == pytest.approx(np.mean(errors), rel=1e-9)
        assert row.error_se == pytest.approx(np.std(errors, ddof=1) / 3**0.5, rel=1e-9)


def test_on_one_text_the_error_is_the_variance_of_section_6():
    """The error is (d - 1) / n_pert: directions share a larger batch, which changes nothing if it holds nothing new."""
    experts, _ = ensemble(2, 1)
    settings = [(4, 2), (12, 2), (4, 6)]
    rows = estimate_errors(TORCH, experts, one_text, settings, 100, 2, 1e-3, 0, "dense")
    for row, directions in zip(rows.itertuples(), (4, 12, 4), strict=True):
        assert_near(row.error, row.error_se, (SPEC.size - 1) / directions, f"{row.n_pert}, {row.batch}")
    assert np.allclose(rows.cosine_distance, 0, atol=1e-12)


@pytest.mark.parametrize(("n_pert", "batch"), [(4, 2), (4, 8), (16, 2)])
def test_on_many_texts_the_error_is_that_of_a_shared_batch(n_pert, batch):
    """The paper's Eq. 17 with a = d - 1: a / n + nu / B + a nu / (n B), and the noise of the reference."""
    experts, _ = ensemble(1, 1)
    crops = [np.concatenate([text(0, i)]) for i in range(4000)]
    gradients = np.stack([exact_gradients(experts, crop[None])[0] for crop in crops])
    g = gradients.mean(axis=0)
    nu = 2 * ((gradients - g) ** 2).sum(axis=1).mean() / (g @ g)  # of one sequence; a crop holds two
    a = SPEC.size - 1
    rows = estimate_errors(TORCH, experts, text, [(n_pert, batch)], 400, 400, 1e-3, 1, "dense", torch.float64)
    (row,) = rows.itertuples()
    expected = a / n_pert + nu / batch + a * nu / (n_pert * batch) + row.reference_error
    assert_near(row.error, row.error_se, expected, f"{n_pert}, {batch}")


def test_times_are_summed_over_experts_and_those_of_the_slowest():
    """The clock shows 1 s for the warm-up, then 1, 2, 4 s for three experts in the second repeat of three."""
    experts, _ = ensemble(3, 1)
    seconds = [100, *(9, 9, 9), *(1, 2, 4), *(0.5, 0.5, 0.5)] * 2
    ticks = itertools.accumulate(x for s in seconds for x in (1000, s))
    rows = estimate_errors(TORCH, experts, text, [(2, 2), (1, 2)], 3, 2, 1e-3, 0, clock=lambda: next(ticks))
    assert rows.aggregate_seconds.to_list() == [7, 7]
    assert rows.elapsed_seconds.to_list() == [4, 4]


def test_only_times_differ_between_two_calls():
    experts, _ = ensemble(2, 1)
    both = [estimate_errors(TORCH, experts, text, [(2, 2)], 2, 4, 1e-3, 0) for _ in range(2)]
    pd.testing.assert_frame_equal(*(rows.drop(columns=TIMES) for rows in both))
    assert (both[0][TIMES] > 0).all(axis=None)
    single = estimate_errors(TORCH, experts, text, [(2, 2)], 2, 4, 1e-3, 0, dtype=torch.float64)
    assert single.error[0] == pytest.approx(both[0].error[0], rel=1e-4)
    assert single.error[0] != both[0].error[0]


def test_untrained_experts_are_those_that_a_seed_run_begins_from():
    seed = spec(kind="seed", experts=1)
    run = spec(experts=3)
    untrained = _untrained(run)
    first = trainer(seed, range(1)).learner.experts
    assert torch.equal(untrained.theta, first.theta.repeat(3, 1))
    assert torch.equal(untrained.distinct_heads[0], first.distinct_heads[0])


def test_cosine_distance():
    a = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert cosine_distance(a, 3 * a) == pytest.approx(0)
    assert cosine_distance(a, -a) == pytest.approx(2)
    assert cosine_distance(a, np.array([[1.0, 1.0], [0.0, 0.0]])) == pytest.approx(1 - 2**-0.5)


def test_impossible_settings_are_refused():
    experts, _ = ensemble(2, 1)
    with pytest.raises(ValueError, match="3 sequences are no whole number of batches of 2"):
        estimate_errors(TORCH, experts, text, [(2, 3)], 2, 4, 1e-3, 0)
    with pytest.raises(ValueError, match="5 sequences"):
        estimate_errors(TORCH, experts, text, [(2, 2)], 2, 5, 1e-3, 0)
    with pytest.raises(ValueError, match="1 estimate"):
        estimate_errors(TORCH, experts, text, [(2, 2)], 1, 4, 1e-3, 0)
