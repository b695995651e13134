"""Sampled bytes, and the stream that they are sampled from."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from scipy.stats import chisquare
from tiny_model import PREFIX, SPEC, K, Tiny, make_experts

from soma.errors import SomaError
from soma.inference.sampling import Sampling


def small() -> np.ndarray:
    """Return a distribution over four bytes."""
    p = np.zeros(256)
    p[[10, 20, 30, 40]] = [0.5, 0.25, 0.15, 0.1]
    return p


def test_draws_follow_the_distribution() -> None:
    for sampling in (Sampling(seed=3), Sampling(0.7, seed=4), Sampling(top_k=3, seed=5), Sampling(top_p=0.8, seed=6)):
        drawn = np.array([sampling.draw(small(), i) for i in range(2000)])
        expected = sampling.distribution(small())
        possible = np.flatnonzero(expected)
        counts = np.bincount(drawn, minlength=256)
        assert counts[possible].sum() == 2000
        assert chisquare(counts[possible], 2000 * expected[possible]).pvalue > 1e-3


def test_temperature_top_k_and_top_p() -> None:
    p = small()
    np.testing.assert_allclose(Sampling().distribution(p), p, rtol=1e-12)
    squared = p**2 / (p**2).sum()
    np.testing.assert_allclose(Sampling(0.5).distribution(p), squared, rtol=1e-12)
    assert Sampling(0).distribution(p).tolist() == np.eye(256)[10].tolist()
    assert np.flatnonzero(Sampling(top_k=2).distribution(p)).tolist() == [10, 20]
    np.testing.assert_allclose(Sampling(top_k=2).distribution(p)[10], 2 / 3)
    assert np.flatnonzero(Sampling(top_p=0.75).distribution(p)).tolist() == [10, 20]
    assert np.flatnonzero(Sampling(top_p=0.76).distribution(p)).tolist() == [10, 20, 30]
    assert np.flatnonzero(Sampling(top_p=1e-9).distribution(p)).tolist() == [10]
    # top-p applies after temperature and top-k: 0.5 of 0.9 is more than half.
    assert np.flatnonzero(Sampling(top_k=3, top_p=0.55).distribution(p)).tolist() == [10]
    equal = np.full(256, 1 / 256)
    assert np.flatnonzero(Sampling(top_k=2).distribution(equal)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top-k is 0"),
        ({"top_k": 257}, "top-k is 257"),
        ({"top_p": 0}, "top-p is 0"),
        ({"top_p": 1.5}, r"top-p is 1\.5"),
    ],
)
def test_settings_outside_their_range(settings: dict, message: str) -> None:
    with pytest.raises(SomaError, match=message):
        Sampling(**settings)


def test_a_seed_is_a_text(tiny: Tiny) -> None:
    model = tiny.ensemble()

    def text(seed: int, **settings: float) -> bytes:
        return b"".join(model.sample("The history of", 60, seed=seed, **settings))

    assert text(1) == text(1)
    assert text(1) != text(2)
    assert len(text(1)) == 60
    assert text(1, temperature=0) == text(2, temperature=0)
    endless = b"".join(islice(model.sample("The history of", seed=1), 60))
    assert endless == text(1)


def test_at_every_byte_the_stream_is_where_a_full_forward_is(tiny: Tiny) -> None:
    """Covers the cold start, where the choice of experts changes, and positions beyond the prefix."""
    model = tiny.ensemble()
    text = tiny.texts[7][: PREFIX + 20]
    stream = model.generation(text[:1])
    choices = []
    for i, byte in enumerate(text[1:], start=1):
        fresh = model.generation(text[:i])
        assert stream.experts == fresh.experts
        np.testing.assert_allclose(stream.probabilities, fresh.probabilities, atol=1e-7)
        choices.append(stream.experts)
        stream.push(byte)
    assert len(set(choices[:PREFIX])) > 1
    assert len(set(choices[PREFIX - 1 :])) == 1
    assert choices[-1] == tuple(tiny.plain_router().route([text], PREFIX, K)[0])


def test_probabilities_are_the_scored_ones(tiny: Tiny) -> None:
    model = tiny.ensemble()
    window = tiny.windows(1)
    nats = model.losses(window)[0]
    text = window[0].tobytes()
    stream = model.generation(text[: PREFIX + 1])
    for i, loss in enumerate(nats):
        byte = text[PREFIX + 1 + i]
        assert abs(stream.probabilities[byte] - np.exp(-loss)) < 2e-6
        stream.push(byte)


def test_an_empty_prompt_starts_from_a_line_feed(tiny: Tiny) -> None:
    model = tiny.ensemble(router=None)
    np.testing.assert_array_equal(model.generation(b"").probabilities, model.generation(b"\n").probabilities)
    assert bytes(model.generation(b"").text) == b""
    routed = tiny.ensemble().generation("")
    assert routed.experts == tuple(tiny.plain_router().route([b""], PREFIX, K)[0])


def test_weights_that_are_no_numbers_end_a_sample(tiny: Tiny) -> None:
    experts = make_experts(SPEC, 1, shared=True)
    experts.theta[0, 3] = float("nan")
    model = tiny.ensemble(k=1, router=None)
    broken = type(model)(experts, None, 1, PREFIX, 80)
    with pytest.raises(SomaError, match="not numbers"):
        next(broken.sample("a"))
