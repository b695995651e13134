"""Cutting texts, and the interval of their losses."""

from __future__ import annotations

import io
import tracemalloc

import numpy as np
import pytest
from tiny_model import PREFIX, WINDOW, Tiny

from soma.errors import SomaError
from soma.inference import score
from soma.inference.score import score_windows, total, windows_of


@pytest.mark.parametrize("length", [26, 27, 80, 81, 82, 137, 300, 1000])
@pytest.mark.parametrize("read", [1, 1 << 22])
def test_every_byte_after_the_first_prefix_is_scored_once(
    length: int, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "_READ", read)
    text = (np.arange(length) % 251).astype(np.uint8)
    windows = [row for batch in windows_of(io.BytesIO(text.tobytes()), WINDOW, PREFIX) for row in batch]
    np.testing.assert_array_equal(np.concatenate([row[PREFIX + 1 :] for row in windows]), text[PREFIX + 1 :])
    *whole, last = windows
    assert all(len(row) == WINDOW + 1 for row in whole)
    assert PREFIX + 1 < len(last) <= WINDOW + 1


def test_a_score_is_the_mean_loss(tiny: Tiny) -> None:
    model = tiny.ensemble()
    text = b" ".join(tiny.texts[:3])
    result = model.score(text)
    windows = list(windows_of(io.BytesIO(text), WINDOW, PREFIX))
    nats = np.concatenate([model.losses(batch).ravel() for batch in windows])
    assert result.bytes == len(nats) == len(text) - PREFIX - 1
    assert result.windows == sum(map(len, windows))
    assert result.nats == pytest.approx(nats.mean(), rel=1e-12)
    assert result.bits == pytest.approx(nats.mean() / np.log(2), rel=1e-12)
    assert result.low < result.nats < result.high
    assert model.score(text.decode()) == model.score(io.BytesIO(text)) == result


class Endless(io.RawIOBase):
    """A text of 64 MB that is never in memory as a whole."""

    left = 64 << 20

    def read(self, size: int = -1) -> bytes:
        assert 0 < size <= 1 << 22, "the whole text was asked for"
        self.left -= size
        return b"the people " * (size // 11) if self.left >= 0 else b""


def test_a_long_text_takes_little_memory(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays that are alive at once, counted by tracemalloc; losses themselves are replaced to save time."""
    monkeypatch.setattr(type(tiny.ensemble()), "losses", lambda _, windows: np.ones((len(windows), WINDOW - PREFIX)))
    monkeypatch.setattr(score, "_DRAWS", 1)
    tracemalloc.start()
    try:
        result = tiny.ensemble().score(Endless())  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.bytes > 60 << 20
    assert peak < 120 << 20


def test_losses_that_are_no_numbers_are_no_score(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(tiny.ensemble()), "losses", lambda _, windows: np.full((len(windows), 3), np.nan))
    with pytest.raises(SomaError, match="not numbers"):
        tiny.ensemble().score(b"x" * 100)


@pytest.mark.parametrize(("text", "message"), [(b"", "empty"), (b"x" * 25, "25 bytes, too few .* at least 26")])
def test_too_little_text(tiny: Tiny, text: bytes, message: str) -> None:
    with pytest.raises(SomaError, match=message):
        tiny.ensemble().score(text)


def test_intervals() -> None:
    rng = np.random.default_rng(0)
    scores = [score_windows([rng.gamma(4, 0.5, (30, 50))]) for _ in range(12)]
    assert sum(s.low < 2 < s.high for s in scores) >= 9
    everything = total(scores)
    assert everything.unit == "documents"
    assert everything.bytes == 12 * 30 * 50
    assert everything.nats == pytest.approx(np.mean([s.nats for s in scores]))
    assert everything.high - everything.low < np.mean([s.high - s.low for s in scores])
    assert total(scores[:2]).unit == "windows"
    assert np.isnan(score_windows([np.ones((1, 4))]).low)
