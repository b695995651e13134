"""FineWeb-Edu: selected row groups of a sample's parquet files.

A file is ordered by crawl, so its first rows all come from one old crawl. Row groups are therefore spread over each
file, and visited in random order if a byte budget may end the reading early.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from soma.config.data import FineWebSource
from soma.data.sources.base import Document, Part
from soma.data.sources.folder import Folder
from soma.data.sources.parquet import ParquetReader, copying, find_folder, texts
from soma.errors import SomaError
from soma.numerics.rng import Stream

REPOSITORY = "HuggingFaceFW/fineweb-edu"


def parts(source: FineWebSource) -> list[Part]:
    """Return one part per file that is read."""
    folder = find_folder(source.path, REPOSITORY, source.revision, source.sample)
    names = folder.names()
    first, last = source.files
    if not first < last <= len(names):
        raise SomaError(
            f"{folder.locate('')} has {len(names)} parquet files, but `files` asks for positions "
            f"{first} up to {last}; choose a range inside 0 to {len(names)}."
        )
    out = []
    for i, name in enumerate(names[first:last]):
        groups = _share(source.row_groups, i, last - first)
        budget = _share(source.bytes, i, last - first)
        if groups != 0 and budget != 0:
            read = partial(_read, name=name, seed=source.seed, groups=groups, rows=source.rows_per_group, budget=budget)
            copies = copying(folder, [name], read, budget) if groups is None else None
            out.append(Part(name, folder.stamp(name), partial(read, folder), copies))
    return out


def _share(total: int | None, i: int, n: int) -> int | None:
    """Return the share of the i-th of n files in a total that is spread evenly."""
    return None if total is None else (i + 1) * total // n - i * total // n


def _read(
    folder: Folder, name: str, seed: int, groups: int | None, rows: int | None, budget: int | None
) -> Iterator[Document]:
    taken = 0
    with ParquetReader(folder, name, ("text", "id", "url")) as reader:
        present = reader.num_row_groups
        if groups is not None and groups > present:
            raise SomaError(
                f"{folder.locate(name)} has {present} row groups, but `row_groups` needs {groups} of it; "
                "lower `row_groups` or read more files."
            )
        chosen = spread_row_groups(present, groups, Stream.named(seed, "fineweb-row-groups", name))
        if budget is not None:
            chosen = chosen[Stream.named(seed, "fineweb-order", name).permutation(len(chosen))]
        for group in chosen.tolist():
            table = reader.read(group)
            if rows is not None:
                order = Stream.named(seed, "fineweb-rows", name).permutation(table.num_rows, direction=group)
                table = table.take(np.sort(order[:rows]))
            where = f"{name}#{group}"
            columns = (texts(table.column(i), f"{folder.locate(name)}, row group {group}") for i in range(3))
            for text, identity, url in zip(*columns, strict=True):
                yield Document(
                    identity.decode(errors="replace"), text, group=where, host=_host(url.decode(errors="replace"))
                )
                taken += len(text)
                if budget is not None and taken >= budget:
                    return


def spread_row_groups(present: int, wanted: int | None, stream: Stream) -> NDArray[np.int64]:
    """Choose `wanted` of `present` row groups, sorted: one at random from each of `wanted` equal stretches."""
    if wanted is None:
        return np.arange(present, dtype=np.int64)
    edges = np.arange(wanted + 1, dtype=np.int64) * present // wanted
    return edges[:-1] + (stream.uniform(wanted) * np.diff(edges)).astype(np.int64)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # keep a document whose address is malformed
        return ""
