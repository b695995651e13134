"""Conclusions of the paper's theory from the variance of an estimate; test_spsa has the variances themselves."""

import numpy as np
import pytest

from soma.estimators.spsa import central_differences
from soma.forward.probes import Probes
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

SPEC = LSTMSpec(4, 1, 4)
N, M = 3, 3 * SPEC.size
START = np.random.default_rng(0).normal(size=(N, SPEC.size))
SMOOTHNESS = 2.0


def loss(theta):
    """A separable quadratic whose gradient is Lipschitz with constant SMOOTHNESS; [..., N, M] to [..., N]."""
    return 0.5 * SMOOTHNESS * (theta**2).sum(axis=-1)


def estimate(update, n_pert, eps=1e-2):
    probes = Probes(SPEC, Stream.named(0, "probe"), "dense", update, tuple(range(N)), range(n_pert))
    z = probes.signs().transpose(1, 0, 2)
    losses = np.stack([loss(START + eps * z), loss(START - eps * z)], axis=-1).transpose(1, 0, 2)
    slopes = central_differences(losses, [eps] * N)
    return probes.combine(slopes / n_pert)


@pytest.mark.parametrize("n_pert", [1, 8])
def test_a_step_at_the_stationarity_bound_descends_by_half_of_the_linear_gain(n_pert):
    """Corollary 2: eta <= 1 / (L (1 + (M/N - 1) / n_pert)); at twice that step an isotropic quadratic stands still."""
    eta = 1 / (SMOOTHNESS * (1 + (M / N - 1) / n_pert))
    g = SMOOTHNESS * START
    estimates = np.array([estimate(update, n_pert) for update in range(2000 // n_pert)])
    for factor, expected in ((1, 0.5), (2, 0.0)):
        step = factor * eta
        descent = (loss(START) - loss(START - step * estimates)).sum(axis=-1) / (step * (g**2).sum())
        error = descent.std(ddof=1) / len(descent) ** 0.5
        rounding = 1e-9  # one probe of an isotropic quadratic has nothing random
        assert abs(descent.mean() - expected) <= 4 * error + rounding
        assert error < 0.05
