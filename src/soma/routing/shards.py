"""The windows that each expert trains on, and those held out for its validation loss.

A shard folder holds `train.npy` and `validation.npy` (uint32 window ids, sorted within each expert, one expert after
the other) and `shards.json` (where each expert's ids start and stop in both).

Shapes: N windows, K experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.files.arrays import open_array
from soma.files.atomic import atomic_directory
from soma.numerics.rng import Stream
from soma.routing.artefact import check, seal

_CHUNK = 1 << 20
_FILES = ("train.npy", "validation.npy")


@dataclass(frozen=True)
class Shards:
    """Memory-mapped shards."""

    directory: Path
    manifest: dict[str, Any]
    """Content of `shards.json`."""
    ids: dict[str, NDArray[np.uint32]]
    """Ids for `train` and for `validation`."""

    @classmethod
    def open(cls, directory: Path) -> Shards:
        """Open the output of `build_shards`; checks sizes, but not contents (see `verify`), so it is fast for any
        corpus.

        Raises:
            SomaError: missing, truncated, or not this kind of artefact.
        """
        manifest = check(directory, "shards", contents=False)
        ids = {name[:-4]: open_array(directory / name, np.uint32, 1) for name in _FILES}
        return cls(directory, manifest, ids)

    @property
    def experts(self) -> int:
        return len(self.manifest["train"])

    def train(self, expert: int) -> NDArray[np.uint32]:
        """Return the sorted ids of an expert's training windows, a read-only view."""
        return self._part("train", expert)

    def validation(self, expert: int) -> NDArray[np.uint32]:
        """Return the sorted ids of an expert's validation windows, a read-only view."""
        return self._part("validation", expert)

    def verify(self) -> None:
        """Raise a `SomaError` unless every file has the hash that `shards.json` records."""
        check(self.directory, "shards")

    def _part(self, name: str, expert: int) -> NDArray[np.uint32]:
        if not 0 <= expert < self.experts:
            raise SomaError(f"{self.directory} has experts 0 to {self.experts - 1}; there is no expert {expert}.")
        start, stop = self.manifest[name][expert]
        return self.ids[name][start:stop]


def build_shards(
    partition: Literal["clusters", "random", "iid"],
    experts: int,
    validation_N: NDArray[np.bool_],
    seed: int,
    output: Path,
    labels_N: NDArray[np.uint16] | None = None,
) -> Shards:
    """Divide the windows among experts and write the folder `output`.

    Args:
        partition: `clusters`: by label; `random`: disjoint, with sizes that differ by at most one; `iid`: every expert
            has all windows (their ids are stored once).
        validation_N: True for windows held out for expert validation, in whichever shard they lie.
        labels_N: the cluster of each window; for `clusters` only.

    Raises:
        SomaError: an expert has no training or no validation window; labels do not fit.
    """
    n = len(validation_N)
    if partition == "clusters":
        if labels_N is None or len(labels_N) != n or (n and labels_N.max() >= experts):
            given = "none" if labels_N is None else f"{len(labels_N)} labels up to {labels_N.max(initial=0)}"
            raise SomaError(
                f"{n} windows and {experts} clusters need one label below {experts} per window, but got {given}; "
                "assign the windows again."
            )
        order, sizes_K = _by_label(labels_N, experts)
    elif partition == "random":
        order, sizes_K = _by_label(_deal(n, experts, seed), experts)
    else:
        order, sizes_K = np.arange(n, dtype=np.uint32), np.array([n])
    held_out = validation_N[order]
    owner = np.repeat(np.arange(len(sizes_K), dtype=np.uint16), sizes_K)
    counts_K = {
        "train": np.bincount(owner[~held_out], minlength=len(sizes_K)),
        "validation": np.bincount(owner[held_out], minlength=len(sizes_K)),
    }
    for part, counts in counts_K.items():
        if (empty := np.flatnonzero(counts == 0)).size:
            e, share = int(empty[0]), "smaller" if part == "train" else "larger"
            raise SomaError(
                f"expert {e} of {experts} ({partition}) has no {part} window among its {sizes_K[e]}; use fewer "
                f"experts, a larger corpus or a {share} data.expert_validation."
            )
    owners = experts if partition == "iid" else 1  # of each range of ids
    record = {
        "partition": partition,
        "seed": seed,
        "windows": n,
        "sizes": sizes_K.tolist() * owners,
        "share": (sizes_K / n).tolist() * owners,
        **{part: _ranges(counts) * owners for part, counts in counts_K.items()},
    }
    with atomic_directory(output, (*_FILES, "shards.json")) as directory:
        np.save(directory / "train.npy", order[~held_out])
        np.save(directory / "validation.npy", order[held_out])
        seal(directory, "shards", record, _FILES)
    return Shards.open(output)


def _by_label(labels_N: NDArray[np.uint16], k: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return window ids grouped by label, ascending within each group, and the size of each group."""
    return np.argsort(labels_N, kind="stable").astype(np.uint32), np.bincount(labels_N, minlength=k)


def _deal(n: int, k: int, seed: int) -> NDArray[np.uint16]:
    """Shuffle the windows and deal them out like cards: every balanced division is equally likely."""
    stream = Stream.named(seed, "shards", "random")
    keys_N = np.empty(n)
    for block, start in enumerate(range(0, n, _CHUNK)):
        keys_N[start : start + _CHUNK] = stream.uniform(min(_CHUNK, n - start), update=block)
    labels_N = np.empty(n, np.uint16)
    labels_N[np.argsort(keys_N, kind="stable")] = np.arange(n) % k
    return labels_N


def _ranges(counts: NDArray[np.int64]) -> list[list[int]]:
    """Return [start, stop] of consecutive ranges of these lengths."""
    stops = np.cumsum(counts)
    ranges: list[list[int]] = np.stack([stops - counts, stops], axis=1).tolist()
    return ranges
