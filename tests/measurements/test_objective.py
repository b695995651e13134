import numpy as np
import pandas as pd
import pytest
import torch

from soma.estimators.spsa import estimate
from soma.forward.probes import Probes
from soma.forward.torch_engine import TorchEngine
from soma.measurements import objective
from soma.measurements.gradients import exact_gradients
from soma.measurements.objective import Pool, batch_probe_trade_off, measure_pool, separable_variance
from soma.numerics.rng import Stream
from tests.measurements.problem import SPEC, assert_near, ensemble

CPU = torch.device("cpu")
DOUBLE = TorchEngine(CPU, torch.float64)

# ------------------------------------------------------------------------------------- independent against summed


def test_variances_of_both_losses_against_estimates_one_by_one():
    experts, tokens = ensemble(3, 3, 2, 9)
    rows = separable_variance(DOUBLE, experts, tokens, 1e-3, 2, 5, 7).set_index("quantity")
    g = exact_gradients(experts, tokens)
    means = {}
    for loss in ("independent", "summed"):
        errors = []
        for i in range(5):
            probes = Probes(SPEC, Stream.named(7, "objective", "probe"), "dense", i, (0, 1, 2), range(2))
            x = estimate(DOUBLE, experts, [tokens], [probes], [1e-3] * 3, loss).gradient
            errors.append(((x - g) ** 2).sum() / (g**2).sum())
        means[loss] = np.mean(errors)
        assert rows.measured[loss] == pytest.approx(means[loss], rel=1e-9)
        assert rows.standard_error[loss] == pytest.approx(np.std(errors, ddof=1) / 5**0.5, rel=1e-9)
    assert rows.measured["ratio"] == pytest.approx(means["summed"] / means["independent"], rel=1e-9)
    assert rows.coordinates.eq(3 * SPEC.size).all()


def test_a_summed_loss_has_n_times_the_variance():
    """Proposition 1 holds on a real model (docs/paper.md section 6), and the jackknife's standard error is right."""
    experts, tokens = ensemble(4, 4, 2, 4)
    rows = separable_variance(TorchEngine(CPU), experts, tokens, 1e-3, 4, 400, 0).set_index("quantity")
    m = 4 * SPEC.size
    assert list(rows.predicted) == [(m / 4 - 1) / 4, (m - 1) / 4, (m - 1) / (m / 4 - 1)]
    for row in rows.itertuples():
        assert_near(row.measured, row.standard_error, row.predicted, row.Index)
    ratios = [separable_variance(TorchEngine(CPU), experts, tokens, 1e-3, 2, 8, s).iloc[2] for s in range(1, 26)]
    spread = np.std([r.measured for r in ratios], ddof=1)
    assert 0.6 < np.mean([r.standard_error for r in ratios]) / spread < 1.6


# ---------------------------------------------------------------------------------------------- batch against probes


def test_differences_are_those_of_the_exact_gradient(monkeypatch):
    experts, tokens = ensemble(2, 2, 3, 9, heads=2)
    pool = measure_pool(DOUBLE, experts.to(torch.float64), tokens, 1e-4, 20, 6, 1)
    assert pool.signs.shape == (2, 6, 20)
    assert set(np.unique(pool.signs)) == {-1, 1}
    assert abs(pool.signs.mean()) < 0.3
    slopes = np.einsum("ejp,ecp->ejc", pool.signs, pool.gradients)
    assert np.allclose(pool.slopes, slopes, rtol=1e-5, atol=1e-7)
    monkeypatch.setattr(objective, "_FLOATS", 1)
    again = measure_pool(DOUBLE, experts.to(torch.float64), tokens, 1e-4, 20, 6, 1)
    assert np.array_equal(again.slopes, pool.slopes)
    single = measure_pool(TorchEngine(CPU), experts, tokens, 1e-2, 20, 6, 1)
    assert np.allclose(single.slopes, slopes, rtol=1e-2, atol=1e-3)


def test_every_coordinate_can_be_perturbed():
    experts, tokens = ensemble(2, 2, 3, 9)
    pool = measure_pool(DOUBLE, experts, tokens, 1e-3, SPEC.size, 2, 1)
    chosen = np.sort(pool.gradients.mean(axis=1), axis=1)
    assert np.allclose(chosen, np.sort(exact_gradients(experts, tokens), axis=1), rtol=1e-10, atol=1e-14)
    with pytest.raises(ValueError, match="269 coordinates of a body that has 268"):
        measure_pool(DOUBLE, experts, tokens, 1e-3, SPEC.size + 1, 2, 1)


def linear(noise, coordinates=32, probes=2048, sequences=8, experts=4):
    """Return a pool of objectives that are linear in the parameters, with sequences that differ by `noise`."""
    stream = Stream.named(0, "linear")

    def normal(direction, *shape):
        return stream.normal(int(np.prod(shape)), direction=direction).reshape(shape)

    differences = normal(1, experts, sequences, coordinates)
    gradients = normal(0, experts, 1, coordinates) + noise * (differences - differences.mean(axis=1, keepdims=True))
    signs = (1 - 2 * stream.integers(experts * probes * coordinates, 2, direction=2)).astype(np.int8)
    signs = signs.reshape(experts, probes, coordinates)
    return Pool(signs, np.einsum("ejp,ecp->ejc", signs, gradients), gradients)


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_the_batch_probe_formula(noise):
    """The variance is a/n + nu/B + a nu/(nB), for groups of 1, 2 and 4 experts and every split of the product."""
    rows = batch_probe_trade_off(linear(noise), 32, 2000, 0)
    assert list(rows.batch) == [1, 2, 4, 8, 16, 32] * 3
    assert (rows.batch * rows.n_pert).eq(32).all()
    for row in rows.itertuples():
        a = row.group * 32 - 1
        formula = a / row.n_pert + row.nu / row.batch + a * row.nu / (row.n_pert * row.batch)
        assert row.predicted == pytest.approx(formula, rel=1e-12)
        assert_near(row.error, row.error_se, formula, f"group {row.group}, B = {row.batch}")


@pytest.mark.parametrize(("noise", "best"), [(0.1, 1), (0.5, 1), (2.0, 2), (5.0, 4)])
def test_the_best_split_is_measured_where_it_is_predicted(noise, best):
    """B* = clamp(sqrt(K nu / a), 1, K) minimises the formula, and the measured minimum is next to it."""
    pool = linear(noise)
    own = batch_probe_trade_off(pool, 32, 2000, 1, groups=(1,))
    nu, a = own.nu[0], 31
    grid = np.geomspace(1, 32, 100_001)
    v = a * grid / 32 + nu / grid + a * nu / 32
    assert own.best_predicted[0] == pytest.approx(grid[v.argmin()], rel=1e-3)
    assert own.best_measured[0] == own.batch[own.predicted.argmin()]
    assert own.best_measured[0] == best
    assert 2**-0.5 <= own.best_measured[0] / own.best_predicted[0] <= 2**0.5


def test_a_noise_that_dwarfs_everything_wants_the_largest_batch():
    rows = batch_probe_trade_off(linear(30.0, coordinates=4, probes=512), 16, 1000, 1, groups=(1,))
    assert rows.best_predicted[0] == 16
    assert rows.best_measured[0] == 16


def test_estimates_one_by_one():
    pool = linear(1.0, coordinates=3, probes=16, sequences=5, experts=2)
    rows = batch_probe_trade_off(pool, 4, 8, 9, groups=(1, 2)).set_index(["group", "batch"])
    g = pool.gradients.mean(axis=1)
    for group, batch in rows.index:
        n = 4 // batch
        sets, errors = 16 // n, []
        for i in range(sets):
            draws = max(1, -(-8 // sets))
            chosen = Stream.named(9, "trade-off", "batch").integers(draws * batch, 5, update=batch, direction=i)
            here = []
            for sequences in chosen.reshape(draws, batch):
                estimated = np.zeros((2, 3))
                for j in range(i * n, (i + 1) * n):
                    own = [np.mean([pool.slopes[e, j, c] for c in sequences]) for e in range(2)]
                    for e in range(2):
                        estimated[e] += (own[e] if group == 1 else sum(own)) * pool.signs[e, j] / n
                here.append(((estimated - g) ** 2).sum() / (g**2).sum())
            errors.append(np.mean(here))
        row = rows.loc[(group, batch)]
        assert row.error == pytest.approx(np.mean(errors), rel=1e-12)
        assert row.error_se == pytest.approx(np.std(errors, ddof=1) / sets**0.5, rel=1e-12)
        assert row.sets == sets


def test_the_trade_off_of_a_real_model():
    experts, tokens = ensemble(4, 4, 6, 5)
    pool = measure_pool(TorchEngine(CPU), experts, tokens, 3e-3, 12, 200, 0)
    rows = batch_probe_trade_off(pool, 8, 1000, 0)
    pd.testing.assert_frame_equal(rows, batch_probe_trade_off(pool, 8, 1000, 0))
    for row in rows.itertuples():
        assert row.error == pytest.approx(row.predicted, abs=5 * row.error_se), (row.group, row.batch)
        assert row.error_se < 0.2 * row.error
    assert (rows.error[rows.group == 4].to_numpy() > rows.error[rows.group == 1].to_numpy()).all()


def test_impossible_settings_are_refused():
    experts, tokens = ensemble(2, 2, 2, 5)
    with pytest.raises(ValueError, match="1 set of probes"):
        separable_variance(DOUBLE, experts, tokens, 1e-3, 2, 1, 0)
    pool = linear(1.0, probes=16)
    with pytest.raises(ValueError, match="power of two"):
        batch_probe_trade_off(pool, 6, 10, 0)
    with pytest.raises(ValueError, match="n_pert = 16 for B = 1 need 32"):
        batch_probe_trade_off(pool, 16, 10, 0)
    with pytest.raises(ValueError, match="4 experts cannot be divided into groups of 1, 3"):
        batch_probe_trade_off(pool, 8, 10, 0, groups=(1, 3))
