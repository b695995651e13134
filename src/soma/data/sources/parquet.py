"""Parquet files in a local folder or on the Hub, read by row group and by column name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from soma.data.sources.base import Document
from soma.data.sources.folder import Folder, LocalFolder, attempt
from soma.data.sources.hub import HubFolder
from soma.errors import SomaError


def check_columns(schema: pa.Schema, columns: Sequence[str], where: str) -> None:
    """Raise a `SomaError` unless the schema has every column."""
    for column in columns:
        if column not in schema.names:
            raise SomaError(
                f"{where} has no column `{column}` (it has: {', '.join(schema.names)}); name one that holds text."
            )


def texts(column: pa.ChunkedArray | pa.Array, where: str) -> list[bytes]:
    """Return the values of a string column as UTF-8 bytes; null becomes empty."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if not any(
        is_text(kind)
        for is_text in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_string_view,
        )
    ):
        raise SomaError(f"{where} holds {kind} where text is expected; name a column of strings.")
    return [value or b"" for value in column.cast(pa.large_binary()).to_pylist()]


def find_folder(path: str | None, repository: str, revision: str, folder: str) -> Folder:
    """Return the local copy at `path` (the folder itself, or one that contains `folder`), or the Hub's."""
    if path is None:
        return HubFolder(repository, revision, folder)
    local = Path(path).expanduser()
    return LocalFolder(local / folder if (local / folder).is_dir() else local)


def copying(
    folder: Folder, names: Sequence[str], read: Callable[[Folder], Iterator[Document]], budget: int | None = None
) -> Callable[[Path], Iterator[Document]] | None:
    """Return how to read files of the Hub from copies in a given folder, or None if they need not be copied.

    Args:
        budget: bytes of text that will be read; None: all. Files of which less than half is needed are not copied.
    """
    if not isinstance(folder, HubFolder) or (budget is not None and 2 * budget < sum(map(folder.size, names))):
        return None

    def copy_and_read(copies: Path) -> Iterator[Document]:
        for name in names:
            folder.copy(name, copies / name)
        yield from read(LocalFolder(copies))

    return copy_and_read


class ParquetReader:
    """Reader of the row groups of one file; a failed read from the Hub is retried on a new connection."""

    def __init__(self, folder: Folder, name: str, columns: Sequence[str]) -> None:
        self._folder, self._name, self._columns = folder, name, list(columns)
        self._stream: IO[bytes] | None = None
        self._file: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def num_row_groups(self) -> int:
        return int(self._attempt(lambda file: file.metadata.num_row_groups))

    def read(self, row_group: int) -> pa.Table:
        """Read the selected columns of one row group, in the requested order."""
        return self._attempt(lambda file: file.read_row_group(row_group, columns=self._columns)).select(self._columns)

    def _attempt(self, action: Callable[[Any], Any]) -> Any:
        def once() -> Any:
            try:
                if self._file is None:
                    self._open()
                return action(self._file)
            except Exception:
                self._close()
                raise

        return attempt(self._folder, self._name, once)

    def _open(self) -> None:
        self._stream = self._folder.open(self._name)
        self._file = pq.ParquetFile(self._stream, pre_buffer=True)
        check_columns(self._file.schema_arrow, self._columns, self._folder.locate(self._name))

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = self._file = None
