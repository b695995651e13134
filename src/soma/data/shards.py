"""The windows that each expert trains on, and those held out for its validation loss.

A shard folder holds `train.npy` and `validation.npy` (uint32 window ids, sorted within each expert, one expert after
the other), `text.bin` (the windows with these ids in this order, `train.npy` first, each with the byte after it) and
`shards.json` (where each expert's ids start and stop in both, and the hash of its own windows). So a training job reads
and checks only what is its own. `text.bin` need not travel with the rest: where it is missing, the same bytes are
gathered from the corpus.

Shapes: N windows, K experts, W bytes in a window.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from soma.data.windows import Rows
from soma.errors import SomaError
from soma.files.arrays import open_array
from soma.files.artefact import check, seal
from soma.files.atomic import atomic_directory
from soma.numerics.rng import Stream

_CHUNK = 1 << 20
_FILES = ("train.npy", "validation.npy")
_MEMORY = 1 << 29
"""Bytes of an expert's text up to which a job holds it in memory; a larger one is mapped."""
_BLOCK = 1 << 24
"""Bytes of text that are read or written at once."""


@dataclass(frozen=True)
class Shards:
    """Memory-mapped shards."""

    directory: Path
    manifest: dict[str, Any]
    """Content of `shards.json`."""
    ids: dict[str, NDArray[np.uint32]]
    """Ids for `train` and for `validation`."""
    text: Path
    """The windows themselves; need not exist."""

    @classmethod
    def open(cls, directory: Path) -> Shards:
        """Open the output of `build_shards`; checks sizes, but not contents (see `verify`), so it is fast for any
        corpus.

        Raises:
            SomaError: missing, truncated, or not this kind of artefact.
        """
        manifest = check(directory, "shards", contents=False)
        ids = {name[:-4]: open_array(directory / name, np.uint32, 1) for name in _FILES}
        return cls(directory, manifest, ids, directory / "text.bin")

    @property
    def experts(self) -> int:
        return len(self.manifest["train"])

    def train(self, expert: int) -> NDArray[np.uint32]:
        """Return the sorted ids of an expert's training windows, a read-only view."""
        return self._part("train", expert)

    def validation(self, expert: int) -> NDArray[np.uint32]:
        """Return the sorted ids of an expert's validation windows, a read-only view."""
        return self._part("validation", expert)

    def verify(self, experts: Sequence[int], corpus: Rows) -> None:
        """Raise a `SomaError` unless the ids, and the windows of some experts, have the hashes in `shards.json`."""
        check(self.directory, "shards")
        for known, expert in {self.manifest["text"][e]: e for e in experts}.items():
            if _hash(self._blocks(expert, corpus)) != known:
                raise SomaError(
                    f"{self.text if self.text.exists() else 'the training text'} does not hold the windows of expert "
                    f"{expert} that {self.directory / 'shards.json'} records; delete it and run the rule that makes it."
                )

    def windows(self, expert: int, corpus: Rows) -> tuple[Rows, NDArray[np.uint32], NDArray[np.uint32]]:
        """Open the windows of an expert: in memory, or mapped for random access if they are large.

        Returns:
            An array of windows, and the places in it of those for training and of those for validation.
        """
        n, m = len(self.train(expert)), len(self.validation(expert))
        if self.text.exists() and (n + m) * (corpus.window + 1) > _MEMORY:
            flat, at, after = _mapped(self.text), self.manifest["train"][expert][0], self._before(expert)
        else:
            flat, at, after = np.concatenate([block.ravel() for block in self._blocks(expert, corpus)]), 0, n
        rows = Rows(flat, corpus.window, corpus.window + 1)
        return rows, np.arange(at, at + n, dtype=np.uint32), np.arange(after, after + m, dtype=np.uint32)

    def _before(self, expert: int) -> int:
        """Return the place in `text.bin` of an expert's first validation window."""
        return len(self.ids["train"]) + int(self.manifest["validation"][expert][0])

    def _blocks(self, expert: int, corpus: Rows) -> Iterator[NDArray[np.uint8]]:
        """Read the windows of an expert, those for training first; uint8 [n, W + 1] at a time."""
        width = corpus.window + 1
        parts = (self.train(expert), self.manifest["train"][expert][0]), (self.validation(expert), self._before(expert))
        for ids, start in parts:
            for i in range(0, len(ids), _BLOCK // width):
                own = ids[i : i + _BLOCK // width]
                if self.text.exists():
                    block = np.fromfile(self.text, np.uint8, len(own) * width, offset=(start + i) * width)
                    if block.size != len(own) * width:
                        raise SomaError(f"{self.text} is truncated; delete it and run the rule that makes it.")
                    yield block.reshape(-1, width)
                else:
                    yield corpus.crops(own, np.zeros(len(own), np.int64), corpus.window)

    def _part(self, name: str, expert: int) -> NDArray[np.uint32]:
        if not 0 <= expert < self.experts:
            raise SomaError(f"{self.directory} has experts 0 to {self.experts - 1}; there is no expert {expert}.")
        start, stop = self.manifest[name][expert]
        return self.ids[name][start:stop]


def build_shards(
    partition: Literal["clusters", "random", "iid"],
    experts: int,
    corpus: Rows,
    validation_N: NDArray[np.bool_],
    seed: int,
    output: Path,
    labels_N: NDArray[np.uint16] | None = None,
) -> Shards:
    """Divide the windows among experts and write the folder `output`.

    Args:
        partition: `clusters`: by label; `random`: disjoint, with sizes that differ by at most one; `iid`: every expert
            has all windows (they are stored once).
        corpus: the N windows.
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
    with atomic_directory(output, (*_FILES, "text.bin", "shards.json")) as directory:
        ids = {"train": order[~held_out], "validation": order[held_out]}
        for part, own in ids.items():
            np.save(directory / f"{part}.npy", own)
        _write_text(directory / "text.bin", corpus, np.concatenate(list(ids.values())))
        made = Shards(directory, record, ids, directory / "text.bin")
        hashes = [_hash(made._blocks(e, corpus)) for e in range(experts // owners)]
        seal(directory, "shards", {**record, "text": hashes * owners}, _FILES)
    return Shards.open(output)


def _write_text(path: Path, corpus: Rows, order: NDArray[np.uint32]) -> None:
    """Write windows in an order, in one pass over the corpus."""
    width = corpus.window + 1
    out = np.memmap(path, np.uint8, "w+", shape=(len(order), width))
    place = np.empty(len(order), np.uint32)
    place[order] = np.arange(len(order), dtype=np.uint32)
    for i in range(0, len(order), _BLOCK // width):
        ids = np.arange(i, min(i + _BLOCK // width, len(order)))
        out[place[ids]] = corpus.crops(ids, np.zeros(len(ids), np.int64), corpus.window)
    out.flush()


def _hash(blocks: Iterator[NDArray[np.uint8]]) -> str:
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()


def _mapped(path: Path) -> NDArray[np.uint8]:
    """Map a file whose reader jumps about, so that the system does not read ahead."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, np.uint8)


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
