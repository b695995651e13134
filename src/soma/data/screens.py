"""Overlap of an evaluation set with training text (docs/paper.md section 2): shared documents and substrings.

Shapes: n windows, W bytes per window, L bytes per substring.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from soma.data.windows import TrainWindows
from soma.files.tables import damaged
from soma.numerics.rng import Stream

SUBSTRING = 128
"""L of the paper's screen, in bytes."""

_CHUNK_BYTES = 2 << 20
_FILTER_BITS = 26
_BASE = 0x9E3779B97F4A7C15


def shared_values(train_directory: Path, documents: pa.Table, columns: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """Return, for each column, which evaluation documents share a value with a training document.

    Args:
        train_directory: the encoded training text; its index is streamed.
        documents: rows of an evaluation role's documents.parquet.
        columns: among id, sha256, normalised_sha256. An empty id never matches.
    """
    wanted = {name: pc.unique(documents.column(name)) for name in columns}
    matches: dict[str, list[pa.Array]] = {name: [pa.array([], wanted[name].type)] for name in columns}
    path = train_directory / "documents.parquet"
    with damaged(path, "encode the text again"), pq.ParquetFile(path) as index:
        for batch in index.iter_batches(batch_size=1 << 20, columns=list(columns)):
            for name in columns:
                here = batch.column(name)
                matches[name].append(here.filter(pc.is_in(here, value_set=wanted[name])))
    out = {}
    for name in columns:
        shared = pc.is_in(documents.column(name), value_set=pa.concat_arrays(matches[name]))
        out[name] = np.asarray(shared.to_numpy(), dtype=np.bool_)
    if "id" in out:
        out["id"] &= np.asarray(pc.not_equal(documents.column("id"), "").to_numpy(), dtype=np.bool_)
    return out


def substring_hashes(windows: NDArray[np.uint8], length: int) -> NDArray[np.uint64]:
    """Compute a 64-bit hash of every substring; uint64 of shape (n, W - length + 1).

    The hash is a polynomial over random byte values, modulo 2**64. Since h_{a+b}(i) = h_a(i) base**b + h_b(i+a), the
    binary digits of `length` give it in about log2(length) steps over whole arrays.
    """
    values = Stream.named(0, "substring-hash").words(512).view(np.uint64)
    power = values[windows]  # h_k for k = 1, 2, 4, ...
    done: NDArray[np.uint64] | None = None  # h of the digits processed so far
    covered, k = 0, 1
    while True:
        if length & k:
            done = power if done is None else _combine(done, power, covered, k)
            covered += k
        if covered == length:
            assert done is not None
            return done
        power = _combine(power, power, k, k)
        k *= 2


def _combine(first: NDArray[np.uint64], second: NDArray[np.uint64], a: int, b: int) -> NDArray[np.uint64]:
    """Compute h_{a+b} from h_a and h_b."""
    width = second.shape[1] - a
    return first[:, :width] * np.uint64(pow(_BASE, b, 1 << 64)) + second[:, a:]


def share_substring(
    windows: NDArray[np.uint8], train: TrainWindows, ids: NDArray[np.int64], length: int = SUBSTRING
) -> NDArray[np.bool_]:
    """Return which windows share a substring of `length` bytes with a training window in `ids`; bool of shape (n,).

    Substrings lie inside one training window each. Hash matches are confirmed byte by byte, so a collision excludes
    nothing. If training windows are shorter than `length`, whole training windows are searched for.
    """
    out = np.zeros(len(windows), dtype=np.bool_)
    length = min(length, train.window)
    if not len(windows) or windows.shape[1] < length:
        return out
    substrings = np.lib.stride_tricks.sliding_window_view(windows, length, axis=1)
    per_window = substrings.shape[1]
    hashes = substring_hashes(windows, length).ravel()
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    # Almost no training substring matches: one look-up in a table of the top bits usually avoids the search.
    bits = min(_FILTER_BITS, 4 + max(1, len(hashes)).bit_length())
    shift = np.uint64(64 - bits)
    known = np.zeros(1 << bits, dtype=np.bool_)
    known[hashes >> shift] = True

    step = max(1, _CHUNK_BYTES // train.window)
    for start in range(0, len(ids), step):
        chunk = train.read(ids[start : start + step])
        theirs = substring_hashes(chunk, length)
        width = theirs.shape[1]
        theirs = theirs.ravel()
        maybe = np.flatnonzero(known[theirs >> shift])
        left = np.searchsorted(hashes, theirs[maybe], side="left")
        hit = hashes[np.minimum(left, len(hashes) - 1)] == theirs[maybe]
        _, first = np.unique(theirs[maybe[hit]], return_index=True)
        for place, low in zip(maybe[hit][first].tolist(), left[hit][first].tolist(), strict=True):
            row, column = divmod(place, width)
            high = np.searchsorted(hashes, theirs[place], side="right")
            which, where = np.divmod(order[low:high], per_window)
            which, where = which[~out[which]], where[~out[which]]
            if len(which):
                same = (substrings[which, where] == chunk[row, column : column + length]).all(axis=1)
                out[which[same]] = True
    return out
