"""Flat folders of parquet files, and the one place where a failed read is tried again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, ClassVar, Protocol, TypeVar

from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]  # exported lazily

from soma.errors import SomaError
from soma.files.tables import DAMAGED

T = TypeVar("T")


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


_LONGEST = 600.0
"""Seconds: a server that asks for a longer pause is not waited for."""


def attempt(
    folder: Folder,
    name: str,
    action: Callable[[], T],
    patience: float = math.inf,
    progress: Callable[[], int] = lambda: 0,
) -> T:
    """Run `action`; if it fails, repeat it as often as the folder allows.

    Before an attempt, this waits as long as the server asks (Retry-After, RateLimit), or else 1, 2, 4, ... seconds.

    Args:
        patience: seconds from now after which no further attempt begins, unless the server asked for the pause.
        progress: a number that grows as attempts get further; one that does is the first of a new series.

    Raises:
        SomaError: the file is not there, HF_HUB_OFFLINE forbids the attempt, every attempt failed, or the server asks
            for a pause of more than ten minutes.
    """
    where, start = folder.locate(name), time.monotonic()
    tried, furthest = 0, progress()
    while True:
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
            if (reached := progress()) > furthest:
                tried, furthest = 0, reached
            tried += 1
            asked = _asked_pause(error)
            pause = 2.0 ** (tried - 1) if asked is None else asked
            late = asked is None and time.monotonic() - start + pause > patience
            if tried >= folder.attempts or late or pause > _LONGEST:
                why = " ".join(str(error).split())
                if asked is not None:
                    why += f"; the server asks to wait {asked:.0f} seconds"
                raise SomaError(
                    f"{where} cannot be read ({type(error).__name__}: {why}); "
                    "check the connection or fetch the file again, then rerun: finished files are kept."
                ) from error
            time.sleep(pause)


def _asked_pause(error: Exception) -> float | None:
    """Return the seconds that the server's answer asks to wait, or None."""
    if not isinstance(error, HfHubHTTPError):
        return None
    limit = parse_ratelimit_headers(error.response.headers)
    if limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    value = error.response.headers.get("Retry-After", "")
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
