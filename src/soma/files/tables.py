"""Parquet files that carry the hash of their content, with damage as one sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from soma.errors import SomaError
from soma.files.atomic import atomic_path

if TYPE_CHECKING:  # training writes tables, and pandas takes as long to import as many updates of a small model
    import pandas as pd

DAMAGED = (pa.ArrowException, OSError)
"""Exceptions that pyarrow raises for a file that is truncated or altered."""


@contextmanager
def damaged(path: Path, advice: str) -> Iterator[None]:
    """Turn pyarrow's errors about the content of a file into one sentence."""
    try:
        yield
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the content
            raise
        why = " ".join(str(error).split())
        raise SomaError(f"{path} is not a readable parquet file ({why}); {advice}.") from error


_AGAIN = "delete it and run the rule that makes it"
_HASH = b"soma_sha256"


def write_rows(path: Path, rows: pd.DataFrame) -> None:
    """Write rows atomically, with the hash of their content."""
    with atomic_path(path) as temporary:
        write_table(temporary, pa.Table.from_pandas(rows, preserve_index=False))


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow table with the hash of its content."""
    pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), _HASH: _content(table)}), path)


def read_rows(path: Path, advice: str = _AGAIN) -> pd.DataFrame:
    """Read the rows of a Parquet file; errors as of `read_table`."""
    return read_table(path, advice).to_pandas()


def read_table(path: Path, advice: str = _AGAIN) -> pa.Table:
    """Read a Parquet file as an Arrow table.

    Raises:
        SomaError: if it is missing or damaged, or its content is not what it was when the file was written. A file of
            others, or of the first edition, has no hash to tell.
    """
    if not path.is_file():
        raise SomaError(f"{path} is missing; run the rule that makes it (snakemake {path}).")
    with damaged(path, advice):
        table = pq.read_table(path)
        recorded = (table.schema.metadata or {}).get(_HASH)
    if recorded not in (None, _content(table)):
        raise SomaError(f"{path} does not have the content that it was written with; {advice}.")
    return table


def _content(table: pa.Table) -> bytes:
    """Hash the names and values of all columns."""
    digest = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(f"{name}\n".encode())
        array = column.combine_chunks()
        if not pa.types.is_floating(array.type) and not pa.types.is_integer(array.type):
            coded = array.dictionary_encode()  # rows have few different texts, each many times
            digest.update(repr(coded.dictionary.to_pylist()).encode())
            array = coded.indices
        digest.update(_numbers(array.is_null().cast(pa.int8())))
        digest.update(_numbers(array.fill_null(0) if array.null_count else array))
    return digest.hexdigest().encode()


def _numbers(array: pa.Array) -> memoryview:
    """Return the bytes of numbers, none of which is missing; pyarrow's own conversions import pandas."""
    width = array.type.bit_width // 8
    return memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
