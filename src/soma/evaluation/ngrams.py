"""Unigram, bigram and trigram models of the training text, as reference lines for the losses of trained models.

Witten and Bell's interpolation (1991; Chen and Goodman 1998, section 2.6), down to the uniform distribution of bytes:

    p(w | h) = (c(h, w) + T(h) p(w | h')) / (c(h) + T(h))

with the counts c of the training text, the number T(h) of different bytes that followed the context h, and the context
h' that is shorter by its first byte. There is nothing to tune.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.data.encode import read_encoded
from soma.data.sets import EvaluationSet
from soma.evaluation.documents import per_document
from soma.evaluation.rows import COLUMNS, NGRAMS
from soma.numerics import exact

_V = 256
_CHUNK = 1 << 24


def count(train: Path) -> NDArray[np.int64]:
    """Count every three consecutive bytes of the encoded training text, separators included.

    The text is read in chunks, so that memory does not grow with it: 128 MiB for the counts, and as much per chunk.

    Returns:
        int64 [V, V, V]: first, second and third byte.
    """
    size = read_encoded(train, "train")["files"]["bytes.bin"]["bytes"]
    text = np.memmap(train / "bytes.bin", np.uint8, "r", shape=(size,))
    counts = np.zeros(_V**3, np.int64)
    for first in range(0, size - 2, _CHUNK):
        part = np.asarray(text[first : first + _CHUNK + 2], np.int32)
        counts += np.bincount((part[:-2] * _V + part[1:-1]) * _V + part[2:], minlength=_V**3)
    return counts.reshape(_V, _V, _V)


def ngram_losses(counts: NDArray[np.int64], data: EvaluationSet) -> pd.DataFrame:
    """Sum the losses of each document, on the bytes that trained models are scored on.

    The context may reach into the routed prefix, which every model has seen.

    Args:
        counts: from `count`.

    Returns:
        One row per model and document with COLUMNS; `update` is 0 and `k` is 1.
    """
    if data.prefix < 1:
        raise ValueError("a trigram needs two bytes before the first scored one")
    frames = [
        per_document(data, -exact.log(p).sum(axis=1)).assign(run=model, set=data.role, update=0, iterate="last", k=1)
        for model, p in zip(NGRAMS, _probabilities(counts, data.windows, data.prefix), strict=True)
    ]
    return pd.concat(frames, ignore_index=True)[list(COLUMNS)]


def _probabilities(counts: NDArray[np.int64], windows: NDArray[np.uint8], prefix: int) -> Iterator[NDArray[np.float64]]:
    """Yield the probability of every scored byte, [n, S], under each of NGRAMS."""
    word = windows[:, prefix + 1 :].astype(np.int64)
    before, first = (windows[:, prefix - i : windows.shape[1] - 1 - i].astype(np.int64) for i in (0, 1))
    pairs = counts.sum(axis=0)
    p: NDArray[np.float64] = np.full(word.shape, 1 / _V)
    for table, context in ((pairs.sum(axis=0), ()), (pairs, (before,)), (counts, (first, before))):
        total, kinds = table.sum(axis=-1)[context], (table > 0).sum(axis=-1)[context]
        # A context that the training text does not have says nothing: the shorter one decides.
        seen = total + kinds > 0
        p = np.where(seen, (table[(*context, word)] + kinds * p) / np.maximum(total + kinds, 1), p)
        yield p
