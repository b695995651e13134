"""N-gram models of the training text: their formula, that they are distributions, and that memory is bounded."""

from collections import Counter

import numpy as np
import pytest

from soma.data.sets import ValidationSet
from soma.evaluation import ngrams
from soma.evaluation.rows import COLUMNS, NGRAMS
from tests.project import ROOT

TEXT = np.frombuffer((ROOT / "README.md").read_bytes(), np.uint8)
TRAIN, REST = TEXT[:8000], TEXT[8000:]
PREFIX = 5


@pytest.fixture
def counts(tmp_path, monkeypatch):
    """Counts of the training text, read in chunks that do not divide it."""
    TRAIN.tofile(tmp_path / "bytes.bin")
    monkeypatch.setattr(ngrams, "read_encoded", lambda *_: {"files": {"bytes.bin": {"bytes": len(TRAIN)}}})
    monkeypatch.setattr(ngrams, "_CHUNK", 977)
    return ngrams.count(tmp_path)


def windows_of(bytes_, size=40):
    rows = bytes_[: len(bytes_) // size * size].reshape(-1, size)
    nothing = np.full(len(rows), "")
    offsets = np.zeros(len(rows), np.int64)
    return ValidationSet(rows, np.arange(len(rows)) // 2, nothing, nothing, nothing, nothing, offsets, PREFIX)


def probability(word: int, context: bytes) -> float:
    """Witten and Bell's formula, from a plain dictionary of the three-byte windows of the training text."""
    grams = Counter(TRAIN[i : i + 3].tobytes()[2 - len(context) :] for i in range(len(TRAIN) - 2))
    followers = {gram[-1]: n for gram, n in grams.items() if gram[:-1] == context}
    shorter = probability(word, context[1:]) if context else 1 / 256
    total, kinds = sum(followers.values()), len(followers)
    return (followers.get(word, 0) + kinds * shorter) / (total + kinds) if followers else shorter


def test_every_three_bytes_are_counted_once(counts):
    grams = Counter(TRAIN[i : i + 3].tobytes() for i in range(len(TRAIN) - 2))
    assert counts.sum() == len(TRAIN) - 2
    assert {bytes(map(int, key)): int(counts[tuple(key)]) for key in np.argwhere(counts)} == grams


def test_losses_are_those_of_the_formula_on_the_scored_bytes(counts):
    data = windows_of(REST)
    rows = ngrams.ngram_losses(counts, data)
    assert list(rows) == list(COLUMNS)
    assert set(rows["run"]) == set(NGRAMS)
    text = data.windows[:2].tolist()  # both windows of document 0
    for order, model in enumerate(NGRAMS):
        nats = -sum(
            np.log(probability(row[j], bytes(row[j - order : j]))) for row in text for j in range(PREFIX + 1, len(row))
        )
        own = rows[(rows["run"] == model) & (rows["document"] == 0)].iloc[0]
        assert own["nats"] == pytest.approx(nats)
        assert own["bytes"] == 2 * (40 - 1 - PREFIX)
    loss = rows.groupby("run")["nats"].sum()
    assert loss["trigram"] < loss["bigram"] < loss["unigram"]


@pytest.mark.parametrize("context", [b"th", b"\xff\xfe", b"\xffe"], ids=["seen", "never seen", "half seen"])
def test_probabilities_sum_to_one_after_any_context(counts, context):
    rows = np.array([[32, *context, word] for word in range(256)], np.uint8)
    for p in ngrams._probabilities(counts, rows, 2):
        assert p.sum() == pytest.approx(1)
        assert (p > 0).all()
