"""Functions made of basic operations agree with the library's, and give the same bits in arrays of any content."""

import numpy as np
import pytest

from soma.numerics import exact
from soma.numerics.rng import Stream

U = Stream.named(0, "exact").uniform(20_000)


def test_the_mean_is_the_sum_one_after_the_other():
    values = U.reshape(2, 100, 100)
    for got, own in zip(exact.mean(values), values, strict=True):
        total = 0.0
        for value in own.ravel().tolist():
            total += value
        assert got == total / 10_000


@pytest.mark.parametrize("base", [0.0, 0.9, 0.999, 1.0, 1.5])
@pytest.mark.parametrize("exponent", [0, 1, 2, 7, 1000])
def test_power(base, exponent):
    assert exact.power(base, exponent) == pytest.approx(base**exponent, rel=1e-13)


@pytest.mark.parametrize(
    ("own", "library", "x"),
    [
        (exact.log, np.log, np.concatenate([1 - U, 2.0 ** np.arange(-1000, 1000, 7) * (1 + U[:286]), [1.0, 0.5, 2.0]])),
        (exact.exp, np.exp, np.concatenate([-U, -700 * U, [0.0, -708.0]])),
        (exact.cos_turns, lambda u: np.cos(2 * np.pi * u), np.concatenate([U, np.arange(16) / 16])),
        (lambda x: exact.root(x, 10), lambda x: x**0.1, np.concatenate([1 + U, 1e300 ** (U + 1e-3), [1.0, 1024.0]])),
    ],
    ids=["log", "exp", "cos", "root"],
)
def test_functions(own, library, x):
    got = own(x)
    np.testing.assert_allclose(got, library(x), rtol=5e-15, atol=1e-15)
    np.testing.assert_array_equal(own(x[7:19]), got[7:19])  # the other numbers of an array change nothing


def test_exact_values():
    assert exact.log(np.array([1.0]))[0] == 0
    assert exact.exp(np.array([0.0]))[0] == 1
    assert exact.root(np.array([1.0, 1024.0]), 10).tolist() == [1.0, 2.0]
    assert exact.cos_turns(np.array([0.0, 0.5])).tolist() == [1.0, -1.0]


def test_what_is_not_a_number_stays_so():
    """A failed run must not produce a finite loss."""
    nan = np.array([np.nan])
    assert np.isnan([exact.log(nan), exact.exp(nan), exact.root(nan, 10), exact.mean(nan)]).all()
    assert np.isinf(exact.root(np.array([np.inf]), 10)).all()
