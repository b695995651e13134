"""Fast routing of short prefixes: the choice of `Router.route` without its setup per call.

Features are computed with the operations of scikit-learn and scipy, in the same order, but only from a dictionary and a
regular expression. Scores are one plain product; if two are so close that its rounding could decide, `Router.scores`
decides. The choice therefore always equals that of `Router.route`.

Shapes: n texts, N experts, D dimensions, V words, K chosen experts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from soma.errors import SomaError
from soma.routing.features import Texts, byte_strings
from soma.routing.router import Router

_WORD = re.compile(r"\b\w\w+\b")  # scikit-learn's default; fitted vocabularies contain no stop words
_COUNTS = 1024  # weights of larger counts are not tabulated


class PrefixRouter:
    """A router prepared for repeated calls: word index, contiguous components, contiguous centroids."""

    def __init__(self, router: Router) -> None:
        features = router.features
        self.router = router
        self._column = {word: v for v, word in enumerate(features.words)}
        self._idf_V = features.idf_V
        self._components_VD = np.ascontiguousarray(features.components_DV.T)
        self._mean_D = features.mean_D
        self._centroids_DN = np.ascontiguousarray(router.centroids_KD.T)
        self._offset_N = router.prices_K if router.assignment == "priced" else np.zeros_like(router.prices_K)
        self._weight = np.log(np.arange(1, _COUNTS + 1, dtype=np.float32)) + 1  # by a word's count
        # Two float32 sums of D products of unit vectors differ by at most this, in any order of summation.
        self._doubt = 4 * features.dims * float(np.finfo(np.float32).eps)

    @property
    def n(self) -> int:
        """Number of experts."""
        return self.router.n

    def route(self, texts: Texts, prefix: int, k: int) -> NDArray[np.int64]:
        """Choose the k nearest experts of each text from its first `prefix` bytes, best first, int64 (n, K).

        Raises:
            SomaError: if k is below 1 or larger than the number of experts, or a score is not a number.
        """
        if not 1 <= k <= self.n:
            raise SomaError(f"k = {k} experts cannot be chosen from {self.n}; choose k between 1 and {self.n}.")
        vectors_nD = self.vectors([text[:prefix] for text in byte_strings(texts)])
        scores_nN = vectors_nD @ self._centroids_DN - self._offset_N
        if not np.isfinite(scores_nN).all():
            raise SomaError("the router gives scores that are not numbers; it is damaged.")
        ahead = min(k + 1, self.n)
        some = np.argpartition(-scores_nN, ahead - 1, axis=1)[:, :ahead] if ahead < self.n else None
        best = np.take_along_axis(scores_nN, some, axis=1) if some is not None else scores_nN
        order = np.argsort(-best, axis=1, kind="stable")
        chosen = np.take_along_axis(some, order, axis=1) if some is not None else order
        gaps = -np.diff(np.take_along_axis(best, order, axis=1), axis=1)
        close = np.flatnonzero((gaps <= self._doubt).any(axis=1))
        if len(close):
            exact_nN = self.router.scores(vectors_nD[close])
            chosen[close] = np.argsort(-exact_nN, axis=1, kind="stable")[:, :ahead]
        return np.ascontiguousarray(chosen[:, :k], dtype=np.int64)

    def vectors(self, texts: Sequence[bytes]) -> NDArray[np.float32]:
        """Compute the unit rows of `Features.transform`, float32 (n, D)."""
        get = self._column.get
        per_text = [[get(word, -1) for word in _WORD.findall(text.decode(errors="ignore").lower())] for text in texts]
        n = len(texts)
        lengths = np.fromiter(map(len, per_text), np.int64, n)
        columns = np.fromiter((column for row in per_text for column in row), np.int64, int(lengths.sum()))
        rows = np.repeat(np.arange(n), lengths)[columns >= 0]
        columns = columns[columns >= 0]
        # Each word of a text once, in column order.
        words = len(self._column)
        cells, counts = np.unique(rows * words + columns, return_counts=True)
        rows, columns = np.divmod(cells, words)
        values = self._weight[np.minimum(counts, _COUNTS) - 1]
        if len(counts) and counts.max() > _COUNTS:
            values = np.log(counts.astype(np.float32)) + 1
        values = values * self._idf_V[columns]
        squares = np.bincount(rows, weights=(values * values).astype(np.float64), minlength=n)
        norms = np.sqrt(squares)
        values = (values / norms[rows]).astype(np.float32)
        starts = np.zeros(n + 1, np.int32)
        np.cumsum(np.bincount(rows, minlength=n), out=starts[1:])
        tfidf = csr_array((values, columns.astype(np.int32), starts), shape=(n, words))
        projected_nD: NDArray[np.float32] = tfidf @ self._components_VD - self._mean_D
        lengths_n1 = np.linalg.norm(projected_nD, axis=1, keepdims=True)
        lengths_n1[lengths_n1 == 0] = 1
        return np.asarray(projected_nD / lengths_n1)

    def similarities(self, text: bytes) -> NDArray[np.float32]:
        """Compute the cosine between a text and each expert's centroid, (N,)."""
        return np.asarray((self.vectors([text]) @ self._centroids_DN)[0])

    def terms(self, expert: int, count: int) -> list[str]:
        """Return the words most over-represented in an expert's cluster relative to the average text, best first."""
        weight_V = self.router.centroids_KD[expert] @ self.router.features.components_DV
        return [self.router.features.words[v] for v in np.argsort(-weight_V, kind="stable")[:count]]
