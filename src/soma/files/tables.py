"""Parquet files, with damage as one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from soma.errors import SomaError

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


def read_rows(path: Path, advice: str = _AGAIN) -> pd.DataFrame:
    """Read the rows of a Parquet file.

    Raises:
        SomaError: if it is missing or damaged.
    """
    with _whole(path, advice):
        return pd.read_parquet(path)


def read_table(path: Path, advice: str = _AGAIN) -> pa.Table:
    """Read a Parquet file as an Arrow table; errors as of `read_rows`."""
    with _whole(path, advice):
        return pq.read_table(path)


@contextmanager
def _whole(path: Path, advice: str) -> Iterator[None]:
    if not path.is_file():
        raise SomaError(f"{path} is missing; run the rule that makes it (snakemake {path}).")
    with damaged(path, advice):
        yield
