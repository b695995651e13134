"""Arithmetic with the same bits on every processor and with every build of numpy.

Mathematics libraries may differ in the last bit of a logarithm or a cosine, and the order of a sum may depend on the
processor. Everything that affects a weight is therefore computed here from additions, multiplications, divisions and
square roots alone, each of which IEEE 754 rounds in exactly one way, in a stated order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LN_2 = 0.6931471805599453
_LN_2_HIGH, _LN_2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
"""The sum is log 2 to 100 bits, and small multiples of the first part are exact."""


def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over all axes but the first, summed sequentially; [n, ...] to [n]."""
    flat = values.reshape(len(values), -1)
    return np.add.accumulate(flat, axis=1)[:, -1] / flat.shape[1]


def power(base: float, exponent: int) -> float:
    """Return base ** exponent for an exponent >= 0, by repeated squaring."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the natural logarithm of positive normal numbers, to about 2e-16.

    x = 2^e m with m in [sqrt(1/2), sqrt(2)), and log m = 2 atanh(s) with s = (m - 1) / (m + 1), as a power series.
    """
    m, e = np.frexp(x)
    small = m < 0.5**0.5
    m, e = np.where(small, 2 * m, m), e - small
    s = (m - 1) / (m + 1)
    t = s * s
    series = np.zeros_like(t)
    for k in range(21, 1, -2):
        series = (series + 1 / k) * t
    return e * _LN_2 + 2 * (s + s * series)


def exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return e^x for x <= 0, to about 2e-16; values below -708 are treated as -708.

    x = k log 2 + r with |r| at most (log 2) / 2, and e^r as a Taylor series.
    """
    x = np.clip(x, -708.0, 0.0)
    k = np.floor(x * (1 / _LN_2) + 0.5)
    r = (x - k * _LN_2_HIGH) - k * _LN_2_LOW
    series = np.ones_like(r)
    for n in range(14, 0, -1):
        series = series * r * (1 / n) + 1
    return np.ldexp(series, np.nan_to_num(k).astype(np.int64))


def cos_turns(turns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return cos(2 pi turns) for turns in [0, 1), to about 2e-16.

    The nearest quarter turn is subtracted exactly; the rest, at most an eighth, goes into the Taylor series.
    """
    quarter = np.floor(4 * turns + 0.5)
    angle = (turns - 0.25 * quarter) * (2 * np.pi)
    square = angle * angle
    cosine, sine = np.zeros_like(square), np.zeros_like(square)
    for k in range(18, 0, -2):
        cosine = (1 + cosine) * square * (-1 / (k * (k - 1)))
        sine = (1 + sine) * square * (-1 / (k * (k + 1)))
    cosine, sine = 1 + cosine, angle * (1 + sine)
    return np.choose(quarter.astype(np.int64) & 3, [cosine, -sine, -cosine, sine])


def root(x: NDArray[np.float64], degree: int) -> NDArray[np.float64]:
    """Return the real root of numbers >= 1, by Newton's method from a power of two, to about 1e-15."""
    finite = np.isfinite(x)
    _, e = np.frexp(x)
    y = np.ldexp(np.where(finite, 1.0, x), np.where(finite, -(-e // degree), 0))  # at least the root
    with np.errstate(invalid="ignore"):
        while True:
            below = y
            for _ in range(degree - 2):
                below = below * y
            following = y - (y - x / below) / degree
            falls = following < y
            if not falls.any():
                return y
            y = np.where(falls, following, y)
