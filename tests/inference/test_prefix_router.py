"""Fast routing makes the same choice as `Router.route` for any text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_model import EXPERTS, PREFIX, Tiny, rows_of

from soma.errors import SomaError
from soma.inference.route import PrefixRouter
from soma.numerics.rng import Stream
from soma.routing.router import Router


@pytest.fixture(scope="module")
def plain(tiny: Tiny) -> Router:
    return tiny.plain_router()


@pytest.fixture(scope="module")
def thousands(tiny: Tiny) -> NDArray[np.uint8]:
    return rows_of(tiny.texts, 96)[:4000]


@pytest.mark.parametrize("prefix", [1, PREFIX, 96])
def test_thousands_of_real_prefixes(plain: Router, thousands: NDArray[np.uint8], prefix: int) -> None:
    assert len(thousands) == 4000
    fast = PrefixRouter(plain)
    for k in (1, 3, EXPERTS):
        np.testing.assert_array_equal(fast.route(thousands, prefix, k), plain.route(thousands, prefix, k))
    texts = [row[:prefix].tobytes() for row in thousands]
    np.testing.assert_array_equal(fast.vectors(texts), plain.features.transform(texts))


def test_many_experts_with_ties_and_prices(plain: Router, thousands: NDArray[np.uint8]) -> None:
    drawn = Stream.named(0, "centroids").normal(64 * plain.features.dims).reshape(64, -1)
    drawn[32:] = drawn[:32]  # every expert has a duplicate
    unit = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    prices = Stream.named(0, "prices").uniform(64).astype(np.float32)
    for assignment in ("nearest", "priced"):
        many = replace(plain, centroids_KD=unit, prices_K=prices, assignment=assignment)
        np.testing.assert_array_equal(
            PrefixRouter(many).route(thousands[:500], 96, 4), many.route(thousands[:500], 96, 4)
        )


def test_odd_texts(plain: Router) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (200, 96)).astype(np.uint8)
    odd = [b"", b" ", b"the", "Straße İstanbul ﬁn".encode(), b"\xff\xfe", b"war " * 2000, *map(bytes, noise)]
    fast = PrefixRouter(plain)
    for prefix in (7, 8000):
        np.testing.assert_array_equal(fast.route(odd, prefix, 3), plain.route(odd, prefix, 3))


def test_bytes_after_the_prefix_do_not_count(plain: Router, thousands: NDArray[np.uint8]) -> None:
    changed = thousands[:300].copy()
    changed[:, PREFIX:] = ord("z")
    fast = PrefixRouter(plain)
    np.testing.assert_array_equal(fast.route(changed, PREFIX, 3), fast.route(thousands[:300], PREFIX, 3))


@pytest.mark.parametrize("k", [0, EXPERTS + 1])
def test_k_outside_the_experts_is_one_sentence(plain: Router, k: int) -> None:
    with pytest.raises(SomaError, match=f"k = {k} .* between 1 and {EXPERTS}"):
        PrefixRouter(plain).route([b"text"], PREFIX, k)
