"""Cutting texts, and the interval of their losses."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_model import PREFIX, WINDOW, Tiny

from soma.errors import SomaError
from soma.inference.score import cut, score_windows, total


@pytest.mark.parametrize("length", [26, 27, 80, 81, 82, 137, 300, 1000])
def test_every_byte_after_the_first_prefix_is_scored_once(length: int) -> None:
    text = (np.arange(length) % 251).astype(np.uint8)
    windows, rest = cut(text.tobytes(), WINDOW, PREFIX)
    scored = [row[PREFIX + 1 :] for row in windows] + ([rest[0][PREFIX + 1 :]] if rest is not None else [])
    np.testing.assert_array_equal(np.concatenate(scored), text[PREFIX + 1 :])
    assert windows.shape[1] == WINDOW + 1
    assert rest is None or PREFIX + 1 < rest.shape[1] <= WINDOW


def test_a_score_is_the_mean_loss(tiny: Tiny) -> None:
    model = tiny.ensemble()
    text = b" ".join(tiny.texts[:3])
    score = model.score(text)
    windows, rest = cut(text, WINDOW, PREFIX)
    assert rest is not None
    nats = np.concatenate([model.losses(windows).ravel(), model.losses(rest).ravel()])
    assert score.bytes == len(nats) == len(text) - PREFIX - 1
    assert score.windows == len(windows) + 1
    assert score.nats == pytest.approx(nats.mean(), rel=1e-12)
    assert score.bits == pytest.approx(nats.mean() / np.log(2), rel=1e-12)
    assert score.low < score.nats < score.high
    assert model.score(text.decode()) == score


@pytest.mark.parametrize(("text", "message"), [(b"", "empty"), (b"x" * 25, "25 bytes, too few .* at least 26")])
def test_too_little_text(tiny: Tiny, text: bytes, message: str) -> None:
    with pytest.raises(SomaError, match=message):
        tiny.ensemble().score(text)


def test_intervals() -> None:
    rng = np.random.default_rng(0)
    scores = [score_windows([rng.gamma(4, 0.5, 50) for _ in range(30)]) for _ in range(12)]
    assert sum(s.low < 2 < s.high for s in scores) >= 9
    everything = total(scores)
    assert everything.unit == "documents"
    assert everything.bytes == 12 * 30 * 50
    assert everything.nats == pytest.approx(np.mean([s.nats for s in scores]))
    assert everything.high - everything.low < np.mean([s.high - s.low for s in scores])
    assert total(scores[:2]).unit == "windows"
    assert np.isnan(score_windows([np.ones(4)]).low)
