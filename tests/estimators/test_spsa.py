"""SPSA on objectives with known gradients: exactness, mean, and the variance formulas of docs/paper.md section 6."""

import numpy as np
import pytest
import torch

from soma.estimators import spsa
from soma.forward.probes import Probes
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream
from tests.estimators.objectives import SPEC, G, M, Objective, estimate, headless, linear


@pytest.mark.parametrize("eps", [1.0, 1e-2])
def test_exact_along_a_direction_for_quadratics(eps):
    curvature = np.random.default_rng(1).normal(size=M)
    theta = torch.from_numpy(np.random.default_rng(2).normal(size=(1, M)))

    def quadratic(x):
        return 0.5 * (curvature * x) @ x + G @ x

    z = Probes(SPEC, Stream.named(0, "probe"), "dense", 0, (0,), range(1)).signs()[0, 0].astype(np.float64)
    slope = (curvature * theta[0].numpy() + G) @ z
    out = estimate(quadratic, n_pert=1, eps=eps, theta=theta).gradient[0]
    assert np.allclose(out, slope * z, rtol=1e-9, atol=1e-9)


def test_error_on_cubics_falls_with_the_square_of_eps():
    def cubic(x):
        return (x**3).sum() + G @ x

    exact = estimate(linear, n_pert=2).gradient
    error = [np.abs(estimate(cubic, n_pert=2, eps=e).gradient - exact).max() for e in (0.2, 0.1)]
    assert error[0] / error[1] == pytest.approx(4, rel=1e-6)


def test_parameters_stay_and_a_flipped_sign_changes_nothing():
    theta = torch.full((1, M), 0.25)
    before = theta.clone()
    a = estimate(linear, theta=theta, kind="sparse").gradient
    assert torch.equal(theta, before)
    assert np.array_equal(a, estimate(linear, theta=theta, kind="sparse", sign=-1).gradient)


def relative_errors(draws=400, reference=G, **options):
    """|g_hat - reference|^2 / |G|^2 of independent estimates of a linear objective."""
    errors = [((estimate(linear, update=u, **options).gradient[0] - reference) ** 2).sum() for u in range(draws)]
    return np.array(errors) / (G @ G)


def assert_mean(values, expected, what):
    error = values.std(ddof=1) / len(values) ** 0.5
    assert abs(values.mean() - expected) < 4 * error, (
        f"{what}: {values.mean():.3f} against {expected:.3f} ± {error:.3f}"
    )
    assert error < 0.05 * expected, "too few draws to tell"


@pytest.mark.parametrize(("kind", "excess"), [("dense", -1), ("gaussian", 1)])
@pytest.mark.parametrize("n_pert", [1, 4, 16])
def test_dense_and_gaussian_variance(n_pert, kind, excess):
    """(d - 1) / n_pert of a dense probe, whose square has no variance, and (d + 1) / n_pert of a Gaussian one."""
    assert_mean(relative_errors(2000 // n_pert, n_pert=n_pert, kind=kind), (M + excess) / n_pert, kind)


def test_few_coordinates_tell_the_two_variances_apart():
    spec = LSTMSpec(1, 1, 1)
    g = np.random.default_rng(6).normal(size=spec.size)
    for kind, excess in (("dense", -1), ("gaussian", 1)):
        z = Probes(spec, Stream.named(0, "probe"), kind, 0, (0,), range(20_000)).vectors()[0].astype(np.float64)
        values = (((z @ g)[:, None] * z - g) ** 2).sum(axis=1) / (g @ g)
        assert_mean(values, spec.size + excess, kind)
        assert abs(values.mean() - (spec.size - excess)) > 4 * values.std() / len(values) ** 0.5


def test_gaussian_mean():
    n_pert, draws = 4, 400
    gradients = [estimate(linear, update=u, n_pert=n_pert, kind="gaussian").gradient[0] for u in range(draws)]
    z_score = (np.mean(gradients, axis=0) - G) / np.sqrt((G @ G + G**2) / (n_pert * draws))
    assert abs((z_score**2).mean() - 1) < 5 * (2 / M) ** 0.5


def activity():
    return np.where(SPEC.gains, 1.0, 0.5)


def test_sparse_mean_variance_and_total_error():
    q, n_pert = activity(), 4
    s = q.sum()
    centred = (q * (1 + s - 2 * q) * G**2).sum() / (n_pert * (G @ G))
    bias = ((1 - q) ** 2 * G**2).sum() / (G @ G)
    options = {"kind": "sparse", "n_pert": n_pert}
    assert_mean(relative_errors(reference=q * G, **options), centred, "centred variance")
    assert_mean(relative_errors(**options), centred + bias, "total error")
    draws = 400
    mean = np.mean([estimate(linear, update=u, **options).gradient[0] for u in range(draws)], axis=0)
    variance = q * (G @ (q * G) + (1 - 2 * q) * G**2) / n_pert  # of every coordinate; their sum is `centred` |G|^2
    assert variance.sum() == pytest.approx(centred * (G @ G))
    z_score = (mean - q * G) / np.sqrt(variance / draws)
    assert abs((z_score**2).mean() - 1) < 5 * (2 / M) ** 0.5


# Noise of the batch. Few coordinates and much noise, so that no term of a formula is small beside the others.

FEW = LSTMSpec(1, 1, 1)
A = FEW.size - 1
NU = 6.0
SLOPE = np.random.default_rng(8).normal(size=FEW.size)
NOISE = np.random.default_rng(9).normal(size=(251, FEW.size))
NOISE -= NOISE.mean(axis=0)
NOISE *= (NU * (SLOPE @ SLOPE) / (NOISE**2).sum(axis=1).mean()) ** 0.5


class NoisyLinear(Objective):
    """Linear losses whose slope is the mean over the batch's sequences of SLOPE plus row `byte` of NOISE."""

    def _losses(self, at):
        slopes = SLOPE + NOISE[at.tokens[:, :, 0]].mean(axis=1)
        along = np.einsum("ejm,em->ej", at.probes.signs(), slopes) * np.array(at.eps)[:, None]
        return along[:, :, None] * at.signs


def noisy_errors(n_pert, batch, accumulation=1, draws=20_000):
    """|g_hat - SLOPE|^2 / |SLOPE|^2 of independent estimates: every draw is an expert with draws of its own."""
    experts = range(draws)
    batches, directions = [], []
    for a in range(accumulation):
        rows = Stream.named(1, "batch").integers(batch, len(NOISE), direction=a, expert=np.array(experts))
        batches.append(rows.astype(np.uint8)[:, :, None])
        own = range(a * n_pert, (a + 1) * n_pert)
        directions.append(Probes(FEW, Stream.named(0, "probe"), "dense", 0, tuple(experts), own))
    theta = torch.zeros(draws, FEW.size)
    estimated = spsa.estimate(NoisyLinear(None), headless(theta, FEW), batches, directions, [1e-2] * draws)
    return ((estimated.gradient - SLOPE) ** 2).sum(axis=1) / (SLOPE @ SLOPE)


def assert_terms(values, *terms):
    """The mean is the sum of the terms within four standard errors, which are less than half of the smallest term: a
    formula without one of them, or with one of them twice, fails."""
    error = values.std(ddof=1) / len(values) ** 0.5
    assert abs(values.mean() - sum(terms)) < 4 * error, f"{values.mean():.4f}, not {sum(terms):.4f} ± {error:.4f}"
    assert 4 * error < min(terms) / 2, "too few draws to tell"


@pytest.mark.parametrize(("n", "b"), [(18, 6), (6, 2), (4, 12)])
def test_variance_with_a_batch_shared_by_all_directions(n, b):
    assert_terms(noisy_errors(n, b), A / n, NU / b, A * NU / (n * b))


def test_variance_of_accumulated_batches():
    n, b, accumulated = 9, 3, 3
    terms = A / (n * accumulated), NU / (b * accumulated), A * NU / (n * b * accumulated)
    assert_terms(noisy_errors(n, b, accumulated), *terms)


def test_variance_of_one_fresh_batch_per_direction():
    """[a + (a + 1) nu / B] / n: unlike with a shared batch, nu / B alone is divided by n too."""
    n, b = 6, 1
    assert_terms(noisy_errors(1, b, n), A / n, A * NU / (b * n), NU / (b * n))


def test_accumulated_batches_draw_their_own_directions():
    one = Probes(SPEC, Stream.named(0, "probe"), "dense", 0, (0,), range(4)).signs()
    two = Probes(SPEC, Stream.named(0, "probe"), "dense", 0, (0,), range(4, 8)).signs()
    z = np.concatenate([one, two], axis=1)[0].astype(np.float64)
    expected = (z @ G) @ z / 8
    assert np.allclose(estimate(linear, n_pert=4, accumulation=2).gradient[0], expected, rtol=1e-9, atol=1e-9)


def ensemble_estimates(loss, draws, experts=4, n_pert=2):
    """Estimates of a separable objective, each expert's loss linear in its own block; [draws, E, M]."""
    blocks = np.random.default_rng(7).normal(size=(experts, M))
    theta = torch.zeros(experts, M)
    out = []

    class Separable(Objective):
        def _losses(self, at):
            slope = np.einsum("ejm,em->ej", at.probes.signs().astype(np.float64), blocks)
            return np.stack([slope * at.eps[0], -slope * at.eps[0]], axis=2)

    engine, tokens = Separable(None), np.zeros((experts, 1, 2), np.uint8)
    for update in range(draws):
        probes = Probes(SPEC, Stream.named(0, "probe"), "dense", update, tuple(range(experts)), range(n_pert))
        estimated = spsa.estimate(engine, headless(theta), [tokens], [probes], [0.01] * experts, loss)
        out.append(estimated.gradient)
    return np.array(out), blocks


def test_a_summed_loss_has_the_same_mean_and_n_times_the_variance():
    """Proposition 1: relative variance (M/N - 1)/n_pert of independent losses, (M - 1)/n_pert of the summed one."""
    n_pert, errors = 2, {}
    for loss, draws, expected in (("independent", 400, (M - 1) / n_pert), ("summed", 600, (4 * M - 1) / n_pert)):
        estimates, blocks = ensemble_estimates(loss, draws, n_pert=n_pert)
        errors[loss] = ((estimates - blocks) ** 2).sum(axis=(1, 2)) / (blocks**2).sum()
        assert_mean(errors[loss], expected, loss)
        scale = (estimates * blocks).sum(axis=(1, 2)) / (blocks**2).sum()
        assert abs(scale.mean() - 1) < 4 * scale.std(ddof=1) / draws**0.5  # the expected gradient is the same
    ratio = errors["independent"].mean() / errors["summed"].mean()
    assert ratio == pytest.approx((4 * M / 4 - 1) / (4 * M - 1), rel=0.1)
