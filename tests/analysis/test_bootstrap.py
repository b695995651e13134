import numpy as np

from soma.analysis.bootstrap import DocumentBootstrap, percentile_interval, seed_interval
from soma.numerics.rng import Stream


def test_intervals_cover_the_truth_as_often_as_they_say():
    generator, covered, trials = np.random.default_rng(0), 0, 300
    for trial in range(trials):
        bytes_ = generator.integers(50, 150, 60).astype(float)
        nats = bytes_ * (2.0 + 0.3 * generator.normal(size=60))
        draws = DocumentBootstrap(bytes_, 400, Stream.named(trial, "b")).ratios(nats[:, None])[:, 0]
        interval = percentile_interval(nats.sum() / bytes_.sum(), draws)
        covered += interval.low <= 2.0 <= interval.high
    assert 0.90 <= covered / trials <= 0.98


def test_draws_are_paired_and_seeded():
    generator = np.random.default_rng(0)
    weights, hard = np.full(40, 100.0), generator.normal(scale=30, size=40)
    nats = np.stack([200 + hard, 201 + hard], axis=1)
    bootstrap = DocumentBootstrap(weights, 1000, Stream.named(0, "b"))
    draws = bootstrap.ratios(nats)
    difference = draws[:, 1] - draws[:, 0]
    assert np.allclose(difference, 0.01, atol=1e-12)  # the part that all runs share cancels
    assert draws[:, 0].std() > 0.02
    assert np.array_equal(draws, bootstrap.ratios(nats))


def test_a_constant_loss_has_no_uncertainty():
    weights = np.arange(1.0, 21)
    draws = DocumentBootstrap(weights, 50, Stream.named(0, "b")).ratios((2.5 * weights)[:, None])
    assert np.allclose(draws, 2.5, rtol=1e-14)


def test_seed_interval_is_students():
    interval = seed_interval(np.array([1.0, 2.0, 3.0]))
    assert interval.mean == 2
    assert np.isclose(interval.high - 2, 4.302653 / 3**0.5, rtol=1e-6)
    assert seed_interval(np.array([1.0])) is None
