"""Routing of text to the experts whose clusters are nearest to its features.

A window trains the expert of its nearest cluster (docs/paper.md section 2); a prediction averages the k experts nearest
to the *prefix* of the text, so scored bytes cannot influence the choice of experts.

Shapes: N windows, K clusters, D dimensions, V words, S selected clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from soma.config.routing import Routing
from soma.errors import SomaError
from soma.files.arrays import new_array
from soma.files.artefact import check, seal
from soma.files.atomic import atomic_directory
from soma.numerics.rng import Stream
from soma.routing.features import Features, Texts, byte_strings, open_vectors
from soma.routing.kmeans import balanced_kmeans, similarities

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Router:
    """Centroids with the features that define their space."""

    features: Features
    centroids_KD: NDArray[np.float32]
    """Unit rows."""
    prices_K: NDArray[np.float32]
    """Prices from the balanced fit."""
    sizes_K: NDArray[np.int64]
    """Cluster sizes in the balanced fit, in sampled windows."""
    assignment: Literal["nearest", "priced"]

    @classmethod
    def load(cls, directory: Path, features: Features) -> Router:
        """Read the files that `build_router` wrote.

        Raises:
            SomaError: a file is missing or damaged, or the router was fitted on other features.
        """
        manifest = check(directory, "router")
        if manifest["features"] != features.id:
            raise SomaError(
                f"{directory} was fitted on other features than those given; fit the router again on these."
            )
        with np.load(directory / "router.npz", allow_pickle=False) as arrays:
            return cls(
                features, arrays["centroids"], arrays["prices"], arrays["sizes"], manifest["settings"]["assignment"]
            )

    @property
    def n(self) -> int:
        """Number of clusters."""
        return len(self.centroids_KD)

    def scores(self, vectors_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute x·c (`nearest`) or x·c − p (`priced`), float32 (N, K)."""
        scores_NK = similarities(vectors_ND, self.centroids_KD)
        return scores_NK - self.prices_K if self.assignment == "priced" else scores_NK

    def assign(self, vectors_ND: NDArray[np.float32]) -> NDArray[np.uint16]:
        """Assign each row to its highest-scoring cluster (the lower index on a tie), uint16 (N,); constant memory."""
        labels_N = np.empty(len(vectors_ND), np.uint16)
        for start in range(0, len(vectors_ND), _CHUNK):
            labels_N[start : start + _CHUNK] = self.scores(vectors_ND[start : start + _CHUNK]).argmax(axis=1)
        return labels_N

    def route(self, windows: Texts, prefix: int, k: int, first: int | None = None) -> NDArray[np.int64]:
        """Return the k highest-scoring clusters, best first (the lower index on a tie), int64 (N, S).

        Only the first `prefix` bytes of each window are used.

        Args:
            first: choose among this many clusters from the start; None means all.

        Raises:
            SomaError: k is larger than the number of clusters to choose from.
        """
        n = self.n if first is None else first
        if not 1 <= k <= n:
            raise SomaError(f"k = {k} experts cannot be chosen from {n}; choose k between 1 and {n}.")
        prefixes = [window[:prefix] for window in byte_strings(windows)]
        scores_NK = self.scores(self.features.transform(prefixes))[:, :n]
        return np.argsort(-scores_NK, axis=1, kind="stable")[:, :k]


def build_router(
    vectors: Sequence[Path],
    ids: NDArray[np.int64],
    features: Features,
    n: int,
    settings: Routing,
    seed: int,
    output: Path,
) -> Router:
    """Fit N centroids and write the folder `output`: `router.npz` (centroids, prices, sizes) and `router.json`.

    Args:
        vectors: features of all windows, one file for each part, from `transform_part`.
        ids: windows to fit on (`sample_ids`).
        features: the features that produced `vectors`.
        n: number of clusters.

    Raises:
        SomaError: there are fewer sampled windows than clusters, or `vectors` is damaged or of other features.
    """
    sampled, start = [], 0
    for path in vectors:
        part_ND = _open_part(path, features)
        inside = ids[np.searchsorted(ids, start) : np.searchsorted(ids, start + len(part_ND))]
        sampled.append(part_ND[inside - start])
        start += len(part_ND)
    if len(ids) and ids[-1] >= start:
        raise SomaError(f"{vectors[-1]} ends before the sample of windows does; make the features again.")
    x_ND = np.concatenate(sampled)
    fit = balanced_kmeans(x_ND, n, Stream.named(seed, "router", "centroids"), settings.iterations)
    s_ND = similarities(x_ND, fit.centroids_KD)
    record = {
        "n": n,
        "seed": seed,
        "settings": settings.model_dump(include={"sample", "iterations", "assignment"}),
        "features": features.id,
        "sample": len(ids),
        "blank_in_sample": features.count_blank(x_ND),
        "objective": list(fit.objective),
        "sizes": {
            "balanced": fit.sizes_K.tolist(),
            "nearest": np.bincount(s_ND.argmax(axis=1), minlength=n).tolist(),
            "priced": np.bincount((s_ND - fit.prices_K).argmax(axis=1), minlength=n).tolist(),
        },
    }
    with atomic_directory(output, ("router.npz", "router.json")) as directory:
        np.savez(directory / "router.npz", centroids=fit.centroids_KD, prices=fit.prices_K, sizes=fit.sizes_K)
        seal(directory, "router", record, ["router.npz"])
    return Router.load(output, features)


def assign_part(vectors: Path, router: Router, windows: int, output: Path) -> None:
    """Write the labels of a part's windows, uint16 (N,), to `output` (.npy).

    Args:
        vectors: features of the part, from `transform_part`.
        windows: number of windows of the part.

    Raises:
        SomaError: `vectors` is damaged, of other features, or of another number of windows.
    """
    part_ND = _open_part(vectors, router.features)
    if len(part_ND) != windows:
        raise SomaError(f"{vectors} holds {len(part_ND)} windows where the text has {windows}; make it again.")
    with new_array(output, np.uint16, (windows,)) as write:
        write(router.assign(part_ND))


def _open_part(vectors: Path, features: Features) -> NDArray[np.float32]:
    """Open the features of a part; raise a `SomaError` for a file that is damaged or of other features."""
    part_ND = open_vectors(vectors)
    if part_ND.shape[1] != features.dims:
        raise SomaError(
            f"{vectors} has {part_ND.shape[1]} dimensions but the features have {features.dims}; make it again."
        )
    return part_ND


@dataclass(frozen=True)
class Cluster:
    """One line of the cluster report."""

    cluster: int
    terms: tuple[str, ...]
    """Most distinctive words, best first."""
    balanced: int
    """Number of sampled windows in the balanced fit."""
    assigned: int
    """Number of corpus windows assigned to the cluster."""


def describe(router: Router, assigned_K: NDArray[np.int64], terms: int = 10) -> list[Cluster]:
    """Return the size and the most distinctive words of each cluster.

    Features are centred, so projecting a centroid back through the SVD shows how much more of each word the cluster has
    than the average window.
    """
    weight_KV = router.centroids_KD @ router.features.components_DV
    top_KT = np.argsort(-weight_KV, axis=1, kind="stable")[:, :terms]
    return [
        Cluster(e, tuple(router.features.words[v] for v in top), int(balanced), int(assigned))
        for e, (top, balanced, assigned) in enumerate(zip(top_KT, router.sizes_K, assigned_K, strict=True))
    ]


def agreement(router: Router, windows: Texts, prefix: int) -> float:
    """Compute the share of windows whose prefix has the cluster of the whole window (docs/paper.md section 8)."""
    whole_N = router.assign(router.features.transform(windows))
    return float((router.route(windows, prefix, 1)[:, 0] == whole_N).mean())
