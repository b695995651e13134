"""Features of a window for the router: tf-idf of its words, projected to few dimensions, centred and normalised.

docs/paper.md section 2: decode as UTF-8 with errors ignored → word tf-idf (sublinear tf, English stop words) →
truncated SVD → subtract the mean → L2. Vocabulary, idf, SVD and mean are fitted on a sample of windows, then fixed. A
window without any word of the vocabulary (a *blank* one) has a zero tf-idf row, so it becomes −mean/|mean| like any
other zero row: all blank windows share that point and go to its cluster. They are counted.

Shapes: N windows, V words, D dimensions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from soma.config.routing import Routing
from soma.errors import SomaError
from soma.files.arrays import check_array, new_array, open_array
from soma.files.artefact import check, seal
from soma.files.atomic import atomic_directory, read_json, write_json
from soma.files.parts import WHOLE, range_of
from soma.numerics.rng import Stream

_CHUNK = 4096  # windows in one task of the pool


class Windows(Protocol):
    """A corpus cut into windows of equal length (`soma.data`)."""

    def __len__(self) -> int: ...

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read the bytes of these windows, shape (len(ids), window)."""


Texts = Sequence[bytes] | NDArray[np.uint8]
"""Windows in memory: a list of byte strings, or uint8 rows."""


def byte_strings(windows: Texts) -> list[bytes]:
    """Convert rows to byte strings."""
    return [w if isinstance(w, bytes) else w.tobytes() for w in windows]


@dataclass(frozen=True)
class Features:
    """A fitted feature extractor."""

    words: tuple[str, ...]
    """Vocabulary, in column order."""
    idf_V: NDArray[np.float32]
    components_DV: NDArray[np.float32]
    """Rows of the truncated SVD."""
    mean_D: NDArray[np.float32]
    """Mean of the projected sample."""
    id: str
    """Hash of the artefact, which a router records to name the features that it was fitted on."""

    @classmethod
    def load(cls, directory: Path) -> Features:
        """Read the files that `build_features` wrote.

        Raises:
            SomaError: a file is missing, truncated, altered, or not this kind of artefact.
        """
        manifest = check(directory, "features")
        with np.load(directory / "features.npz", allow_pickle=False) as arrays:
            return cls(
                tuple(read_json(directory / "vocabulary.json")),
                arrays["idf"],
                arrays["components"],
                arrays["mean"],
                manifest["id"],
            )

    @property
    def dims(self) -> int:
        return len(self.mean_D)

    @cached_property
    def _vectoriser(self) -> Any:
        # Imported here, as in `build_features`: the import takes seconds, and evaluating a run without clusters does
        # not need it.
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectoriser = TfidfVectorizer(**_tfidf(np.float32), vocabulary=self.words)
        vectoriser.idf_ = self.idf_V
        return vectoriser

    @cached_property
    def _components_VD(self) -> NDArray[np.float32]:
        return np.ascontiguousarray(self.components_DV.T)

    @cached_property
    def blank_D(self) -> NDArray[np.float32]:
        """Features of a window without a word of the vocabulary."""
        return _unit(-self.mean_D[None]).reshape(-1)

    def transform(self, windows: Texts) -> NDArray[np.float32]:
        """Compute unit rows, float32 (N, D). A row depends on its own window alone, to the last bit."""
        tfidf_NV = self._vectoriser.transform(byte_strings(windows))
        # Scipy sums a sparse product row by row, without BLAS, so it does not depend on threads or on other rows.
        projected_ND: NDArray[np.float32] = tfidf_NV @ self._components_VD
        return _unit(projected_ND - self.mean_D)

    def count_blank(self, vectors_ND: NDArray[np.float32]) -> int:
        """Count the rows that equal the features of a window without a word of the vocabulary."""
        return int(np.count_nonzero((vectors_ND == self.blank_D).all(axis=1)))


def sample_ids(n_windows: int, settings: Routing, seed: int) -> NDArray[np.int64]:
    """Draw the sorted ids of the windows to fit vocabulary, SVD and centroids on, at most `settings.sample`.

    One window is drawn uniformly from each of equal consecutive stretches of the corpus, which needs no memory beyond
    the result and cannot miss a part of the corpus.
    """
    n = min(n_windows, settings.sample)
    edges = np.arange(n + 1) * n_windows // n if n else np.zeros(1, np.int64)
    draws = Stream.named(seed, "router", "sample").uniform(n)
    return edges[:-1] + (draws * np.diff(edges)).astype(np.int64)


def build_features(windows: Windows, settings: Routing, seed: int, output: Path) -> Features:
    """Fit on `sample_ids` and write the folder `output`: `features.npz`, `vocabulary.json`, `features.json`.

    The SVD keeps `settings.svd` dimensions, or fewer if the vocabulary or the sample is no larger than that;
    `features.json` records both numbers.

    Raises:
        SomaError: fewer than two words occur in `settings.min_df` windows.
    """
    import sklearn
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    ids = sample_ids(len(windows), settings, seed)
    vectoriser = TfidfVectorizer(**_tfidf(np.float64), max_features=settings.features, min_df=settings.min_df)
    try:
        tfidf_NV = vectoriser.fit_transform(_read(windows, ids))
        words = [str(word) for word in vectoriser.get_feature_names_out()]
    except ValueError:  # scikit-learn's "empty vocabulary", "no terms remain", "max_df < min_df"
        words = []
    dims = min(settings.svd, len(words) - 1, len(ids) - 1)
    if dims < 1:
        raise SomaError(
            f"Only {len(words)} words occur in at least routing.min_df = {settings.min_df} of the {len(ids)} sampled "
            "windows, but features need at least 2; lower routing.min_df or use a larger corpus."
        )
    svd = TruncatedSVD(dims, random_state=Stream.named(seed, "router", "svd").seed32())
    with threadpool_limits(1):  # the last bits of a multithreaded QR depend on the number of threads
        mean_D = svd.fit_transform(tfidf_NV).mean(axis=0)
    arrays = {"idf": vectoriser.idf_, "components": svd.components_, "mean": mean_D}
    record = {
        "seed": seed,
        "settings": settings.model_dump(exclude={"iterations", "assignment"}),
        "windows": len(windows),
        "sample": len(ids),
        "words": len(words),
        "dims": dims,
        "explained_variance": float(svd.explained_variance_ratio_.sum()),
        "blank_in_sample": int((np.diff(tfidf_NV.indptr) == 0).sum()),
        "scikit_learn": sklearn.__version__,
    }
    with atomic_directory(output, ("features.npz", "vocabulary.json", "features.json")) as directory:
        np.savez(directory / "features.npz", **{k: v.astype(np.float32) for k, v in arrays.items()})
        write_json(directory / "vocabulary.json", words)
        seal(directory, "features", record, ["features.npz", "vocabulary.json"])
    return Features.load(output)


def transform_part(
    windows: Windows, features: Features, output: Path, workers: int, part: str = WHOLE, chunk: int = _CHUNK
) -> int:
    """Stream the features of a part's windows, in order, to the float32 (N, D) array `output` (.npy).

    Neither the number of parts nor `workers` (processes) nor `chunk` (windows per task) changes the features of a
    window; memory is a few chunks per worker.

    Returns:
        The number of blank windows.
    """
    own = range_of(part, len(windows))
    starts = range(own.start, own.stop, chunk)
    texts = (windows.read(np.arange(a, min(a + chunk, own.stop))) for a in starts)
    blank = 0
    with new_array(output, np.float32, (len(own), features.dims)) as write:
        for x_ND in tqdm(_in_order(features, texts, workers), "features", len(starts), disable=None):
            write(x_ND)
            blank += features.count_blank(x_ND)
    return blank


def open_vectors(path: Path) -> NDArray[np.float32]:
    """Memory-map the features that `transform_part` wrote; reads them once, against damage.

    Raises:
        SomaError: missing, damaged, or not a float32 matrix.
    """
    vectors = open_array(path, np.float32, 2)
    check_array(path)
    return vectors


def _tfidf(dtype: type[np.floating[Any]]) -> dict[str, Any]:
    """Return the paper's tf-idf settings; the rest is scikit-learn's default (L2 rows, smooth idf, words of 2+
    letters).
    """
    return {"sublinear_tf": True, "stop_words": "english", "decode_error": "ignore", "dtype": dtype}


def _unit(x_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    norms_N1 = np.linalg.norm(x_ND, axis=1, keepdims=True)
    norms_N1[norms_N1 == 0] = 1
    unit_ND: NDArray[np.float32] = x_ND / norms_N1
    return unit_ND


def _read(windows: Windows, ids: NDArray[np.int64]) -> Iterator[bytes]:
    for start in range(0, len(ids), _CHUNK):
        yield from byte_strings(windows.read(ids[start : start + _CHUNK]))


_features: Features  # in a worker process


def _install(features: Features) -> None:
    global _features
    _features = features


def _transform(texts: NDArray[np.uint8]) -> NDArray[np.float32]:
    return _features.transform(texts)


def _in_order(features: Features, texts: Iterator[NDArray[np.uint8]], workers: int) -> Iterator[NDArray[np.float32]]:
    """Yield transformed chunks in order, from a pool that never holds more than two chunks per worker."""
    if workers == 1:
        yield from map(features.transform, texts)
        return
    # "spawn": a fork of a process with BLAS threads can hang.
    with ProcessPoolExecutor(workers, get_context("spawn"), _install, (features,)) as pool:
        pending: deque[Future[NDArray[np.float32]]] = deque()
        for chunk in texts:
            pending.append(pool.submit(_transform, chunk))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
