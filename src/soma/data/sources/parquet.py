"""Parquet files in a local folder or on the Hub, read by row group and by column name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Protocol, Self, TypeVar

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub.errors import OfflineModeIsEnabled

from soma.errors import SomaError
from soma.files.tables import DAMAGED

T = TypeVar("T")


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


class Folder(Protocol):
    """A flat folder of parquet files."""

    attempts: ClassVar[int]
    """Number of times to attempt a read."""
    failures: ClassVar[tuple[type[Exception], ...]]
    """Errors that another attempt, or another copy of the file, may resolve."""

    def locate(self, name: str) -> str:
        """Return the full name for messages."""

    def names(self) -> list[str]:
        """Return the sorted names of the parquet files."""

    def open(self, name: str) -> IO[bytes]:
        """Open a seekable stream."""

    def stamp(self, name: str) -> str:
        """Return a value that changes when the file may have changed."""


@dataclass(frozen=True)
class LocalFolder:
    """A folder on this machine."""

    path: Path
    attempts: ClassVar[int] = 1
    failures: ClassVar[tuple[type[Exception], ...]] = DAMAGED

    def locate(self, name: str) -> str:
        return str(self.path / name)

    def names(self) -> list[str]:
        if not self.path.is_dir():
            raise SomaError(f"{self.path} is not a folder; name the one that holds the parquet files.")
        return sorted(path.name for path in self.path.glob("*.parquet") if not path.name.startswith("."))

    def open(self, name: str) -> IO[bytes]:
        return (self.path / name).open("rb")

    def stamp(self, name: str) -> str:
        known = (self.path / name).stat()
        return f"{known.st_size}-{known.st_mtime_ns}"


@dataclass(frozen=True)
class HubFolder:
    """A folder of a data set on the Hub, at a pinned commit."""

    repository: str
    revision: str
    folder: str
    attempts: ClassVar[int] = 7
    # Errors of a network read come from several layers (HTTP client, storage back end, parquet decoder).
    failures: ClassVar[tuple[type[Exception], ...]] = (Exception,)

    def locate(self, name: str) -> str:
        return f"datasets/{self.repository}@{self.revision}/{self.folder}/{name}".rstrip("/")

    def names(self) -> list[str]:
        path = self.locate("")
        listing = attempt(self, "", lambda: huggingface_hub.HfFileSystem().ls(path, detail=False), _PATIENCE)
        names = (str(entry).rsplit("/", 1)[-1] for entry in listing)
        return sorted(name for name in names if name.endswith(".parquet"))

    def open(self, name: str) -> IO[bytes]:
        # A row group of FineWeb-Edu is 3 MB: a larger read-ahead would mostly be discarded.
        stream: IO[bytes] = huggingface_hub.HfFileSystem().open(self.locate(name), "rb", block_size=4 << 20)
        return stream

    def stamp(self, name: str) -> str:
        return self.revision


def find_folder(path: str | None, repository: str, revision: str, folder: str) -> Folder:
    """Return the local copy at `path` (the folder itself, or one that contains `folder`), or the Hub's."""
    if path is None:
        return HubFolder(repository, revision, folder)
    local = Path(path).expanduser()
    return LocalFolder(local / folder if (local / folder).is_dir() else local)


_PATIENCE = 8.0
"""Seconds after which the first contact with the Hub is not tried again. A request takes up to 13, so that someone
without a connection is told within 20 seconds; a download that has begun waits a minute for one to come back."""


def attempt(folder: Folder, name: str, action: Callable[[], T], patience: float = math.inf) -> T:
    """Run `action`; if it fails, repeat it after pauses of 1, 2, 4, ... seconds, as often as the folder allows.

    Args:
        patience: seconds from now after which no further attempt begins.

    Raises:
        SomaError: the file is not there, HF_HUB_OFFLINE forbids the attempt, or every attempt failed.
    """
    where, start = folder.locate(name), time.monotonic()
    for tried in range(1, folder.attempts + 1):
        try:
            return action()
        except SomaError:
            raise
        except FileNotFoundError:
            raise SomaError(f"{where} does not exist; check the source's path, revision and folder.") from None
        except OfflineModeIsEnabled:
            raise SomaError(
                f"{where} cannot be read because HF_HUB_OFFLINE is set; unset it, or set the source's `path` to a copy "
                "on this machine."
            ) from None
        except folder.failures as error:
            pause = 2.0 ** (tried - 1)
            if tried == folder.attempts or time.monotonic() - start + pause > patience:
                why = " ".join(str(error).split())
                raise SomaError(
                    f"{where} cannot be read ({type(error).__name__}: {why}); "
                    "check the connection or fetch the file again, then rerun: finished files are kept."
                ) from error
            time.sleep(pause)
    raise AssertionError("a folder allows at least one attempt")


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
