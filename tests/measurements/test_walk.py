"""EGGROLL's weights against a random walk: one of pure noise, and runs that learn."""

import numpy as np
import pandas as pd
import pytest
import torch

from soma.analysis.fixed_size import is_noise
from soma.measurements.walk import walk
from soma.numerics.rng import Stream
from soma.training.methods.eggroll import estimator, initial_weights
from tests.training.small_runs import EGGROLL, TEXT, spec, trained


def run_of(updates, **changes):
    settings = {"method": "eggroll", "experts": 1, "start": "random", "depth": 1, "updates": updates}
    return spec(**settings, eggroll=EGGROLL | changes)


def wander(run):
    """Take the updates of a run whose fitness has nothing to do with its weights."""
    theta = initial_weights(run)
    for update in range(run.updates):
        losses = Stream.named(update, "fitness").normal(run.settings.eggroll.population).reshape(-1, 2)
        theta, _ = estimator(run).update(theta, losses, update)
    return theta


def row(run, theta, updates=24):
    return pd.DataFrame([walk(run, theta, TEXT, updates)])


def test_weights_that_wandered_have_the_size_of_noise():
    run = run_of(150, alpha=0.3, population=256)
    theta = wander(run)
    found = row(run, theta).iloc[0]
    start = initial_weights(run).double().square().mean()
    assert found["noise_rms"] == pytest.approx(float((start + 150 * 0.3 * 0.1**2) ** 0.5))
    assert found["rms"] == pytest.approx(float(theta.double().square().mean() ** 0.5))
    assert abs(found["rms"] / found["noise_rms"] - 1) < 0.02
    assert found["initial_rms"] < 0.85 * found["rms"]


def test_a_run_without_signal_is_noise_and_one_that_learns_is_not():
    """The first updates of a large population agree; a small one's, where the weights have wandered off, do not."""
    learning = run_of(1, alpha=0.3, population=8192, sigma=0.0625, pair_chunk=256)
    learns = row(learning, initial_weights(learning))
    assert not is_noise(learns).any()
    assert learns.loc[0, "agreement"] > 4 * learns.loc[0, "agreement_se"]
    wandering = run_of(150, alpha=0.3, population=256)
    assert is_noise(row(wandering, wander(wandering))).all()


def test_the_rule():
    base = {"updates": 32, "rms": 4.28, "noise_rms": 4.29, "agreement": 0.0005, "agreement_se": 0.0004}
    changes = [{}, {"agreement": 0.0009}, {"agreement": -0.0009}, {"rms": 4.4}, {"rms": 4.1}, {"noise_rms": np.nan}]
    found = is_noise(pd.DataFrame([base | change for change in changes]))
    assert found.tolist() == [True, False, False, False, False, False]


def test_schedules_enter_the_expected_size():
    run = run_of(12, alpha=0.4, alpha_halved_at=0.25, step_halved_at=0.5)
    found = row(run, initial_weights(run), 2).iloc[0]
    walked = sum(0.4 / (1 + t / 3) * (0.1 / (1 + t / 6)) ** 2 for t in range(12))
    assert found["noise_rms"] ** 2 - found["initial_rms"] ** 2 == pytest.approx(walked)
    assert found["alpha"] == pytest.approx(0.4 / (1 + 11 / 3))
    plateau = run_of(12, step_halved_at="plateau")
    assert np.isnan(row(plateau, initial_weights(plateau), 2).loc[0, "noise_rms"])


def test_moved_and_ties_are_those_of_updates_that_are_not_taken():
    run = run_of(12)
    theta = trained(run, range(1)).kept["000.00000012.last.body"]
    before = theta.clone()
    found = row(run, theta, 2).iloc[0]
    assert torch.equal(theta, before)
    assert 0 < found["moved"] < 1
    assert (found["updates"], found["alpha"]) == (2, 0.5)
