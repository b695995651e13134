"""Variances of gradient estimators agree with their formulas, on a tiny expert in float64."""

import numpy as np
import pytest
import torch

from soma.estimators import spsa
from soma.forward.probes import Probes
from soma.forward.torch_engine import TorchEngine
from soma.measurements.estimator_variance import estimator_variance
from soma.measurements.gradients import exact_gradients
from soma.measurements.variance import activity
from soma.numerics.rng import Stream
from tests.measurements.problem import SPEC, assert_near, ensemble

ENGINE = TorchEngine(torch.device("cpu"), torch.float64)
EXPERTS, TOKENS = ensemble(1, 1, 2, 5)
M = SPEC.size


def rows(settings, repeats, eps=1e-3):
    table = estimator_variance(ENGINE, EXPERTS, TOKENS, settings, repeats, eps, 3)
    return table.set_index("name")


def test_variance_and_bias_of_every_kind_of_probe():
    n, repeats = 8, 150
    table = rows([(kind, kind, "central", n) for kind in ("sparse", "dense", "gaussian")], repeats)
    g = exact_gradients(EXPERTS, TOKENS)[0]
    q = activity(SPEC, "sparse")
    sparse = (q * (1 + q.sum() - 2 * q) * g**2).sum() / (g @ g)
    for kind, expected in (("sparse", sparse), ("dense", M - 1), ("gaussian", M + 1)):
        row = table.loc[kind]
        assert_near(row.relative_variance, row.relative_variance_se, expected / n, kind)
        # The noise of the mean has the squared norm v / R, with a relative spread of about (2 / M)^0.5.
        assert abs(row.relative_bias2) < 6 * row.relative_variance / repeats * (2 / M) ** 0.5
        assert (row.n_pert, row.forwards, row.repeats) == (n, 2 * n, repeats)
        # g_hat = g + noise, and the noise is almost orthogonal to g
        assert row.cosine == pytest.approx((1 + row.relative_variance) ** -0.5, rel=0.2)


def test_columns_are_what_they_say_for_estimates_one_by_one():
    repeats, n, eps = 4, 3, 0.05
    row = rows([("a", "gaussian", "one-sided", n)], repeats, eps).loc["a"]
    g, stream, gradients = exact_gradients(EXPERTS, TOKENS)[0], Stream.named(3, "estimator-variance", "probe"), []
    for r in range(repeats):
        probes = Probes(SPEC, stream, "gaussian", r, (0,), range(n))
        estimate = spsa.estimate(ENGINE, EXPERTS, [TOKENS], [probes], [eps], difference="one-sided")
        gradients.append(estimate.gradient[0])
    cosines = [x @ g / np.sqrt((x @ x) * (g @ g)) for x in gradients]
    assert row.relative_variance == pytest.approx(np.var(gradients, axis=0, ddof=1).sum() / (g @ g), rel=1e-12)
    assert row.cosine == pytest.approx(np.mean(cosines), rel=1e-12)
    assert row.cosine_se == pytest.approx(np.std(cosines, ddof=1) / repeats**0.5, rel=1e-12)
    bias2 = ((np.mean(gradients, axis=0) - g) ** 2).sum() / (g @ g)
    assert row.relative_bias2 == pytest.approx(bias2 - row.relative_variance / repeats, rel=1e-9)


def test_differences_of_one_kind_of_probe():
    """One-sided differences match two-sided ones for small steps, and have an error for large ones; pairs have none."""
    settings = [(d, "dense", d, 4) for d in ("central", "one-sided", "curvature", "alternating")]
    small, large = (rows(settings, 40, eps) for eps in (1e-5, 0.3))
    assert list(small.forwards) == [8, 5, 9, 10]
    assert small.relative_variance["one-sided"] == pytest.approx(small.relative_variance["central"], rel=1e-2)
    for table in (small, large):
        assert table.relative_variance["alternating"] == pytest.approx(table.relative_variance["central"], rel=1e-6)
    assert large.relative_variance["one-sided"] > 1.02 * large.relative_variance["central"]


def test_it_repeats_bit_for_bit_and_needs_two_estimates():
    settings = [("a", "sparse", "curvature", 2)]
    assert rows(settings, 3).equals(rows(settings, 3))
    with pytest.raises(ValueError, match="two or more"):
        rows(settings, 1)
