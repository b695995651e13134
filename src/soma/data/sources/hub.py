"""A folder of a data set on the Hub, read over HTTP by ranges that are checked one by one.

A request is tried again in one place only (`attempt`): the retries of huggingface_hub itself have no limit on the time
that a silent server takes. Its session gives the connection, the token and the switch HF_HUB_OFFLINE.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, ClassVar, cast
from urllib.parse import quote

from huggingface_hub import constants, get_session
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]  # exported lazily

from soma.data.sources.folder import attempt
from soma.errors import SomaError
from soma.files.hashes import sha256_file

_PATIENCE = 8.0
"""Seconds after which the first contact with the Hub is not tried again, so that someone without a connection is told
soon; a download that has begun waits a minute for one to come back."""
_CONNECT = 3.0
"""Seconds for each of the Hub's addresses to accept a connection. It has several, which are tried in turn."""


@dataclass(frozen=True)
class _File:
    size: int
    sha256: str


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
        return sorted(self._files)

    def size(self, name: str) -> int:
        return self._files[name].size

    def open(self, name: str) -> IO[bytes]:
        return cast(IO[bytes], _Ranges(self, name, self.size(name)))

    def stamp(self, name: str) -> str:
        return self.revision

    def copy(self, name: str, target: Path) -> None:
        """Copy a whole file, from where an earlier copy at `target` ended, and check its SHA-256.

        Raises:
            SomaError: as `attempt`, or the file does not have the hash that the Hub lists, not even when fetched again.
        """
        file, altered = self._files[name], 0
        target.parent.mkdir(parents=True, exist_ok=True)

        def held() -> int:
            return target.stat().st_size if target.exists() else 0

        def go_on() -> None:
            nonlocal altered
            if (start := held()) < file.size:
                with self.range(name, start, file.size) as chunks, target.open("ab") as stream:
                    for chunk in chunks:
                        stream.write(chunk)
            if sha256_file(target) == file.sha256:
                return
            target.unlink()
            altered += 1
            what = f"its bytes do not have the SHA-256 {file.sha256[:12]}... that the Hub lists"
            if altered == 2:
                raise SomaError(f"{self.locate(name)} was fetched twice, but {what}; try again later.")
            raise OSError(what)

        attempt(self, name, go_on, progress=held)

    @contextmanager
    def range(self, name: str, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        """Request the bytes [start, stop) of a file; yields them in chunks, and raises an error unless all came."""
        file = self._files[name]
        url = f"{constants.ENDPOINT}/datasets/{self.repository}/resolve/{self.revision}/{quote(self._path(name))}"
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        with get_session().stream("GET", url, headers=headers, timeout=_timeout()) as response:
            _check(response)
            answers = [*response.history, response]
            linked = next((a.headers["X-Linked-ETag"] for a in answers if "X-Linked-ETag" in a.headers), None)
            if linked is not None and linked.removeprefix("W/").strip('"') != file.sha256:
                raise SomaError(
                    f"{self.locate(name)} is no longer the file that the Hub listed (ETag {linked}); start the "
                    "download again."
                )
            whole = response.status_code == 200 and (start, stop) == (0, file.size)
            given = response.headers.get("Content-Range", "no range")
            if not whole and (response.status_code, given) != (206, f"bytes {start}-{stop - 1}/{file.size}"):
                raise OSError(f"bytes {start}-{stop - 1}/{file.size} were requested, but {given} was sent")
            yield _exactly(stop - start, response.iter_raw())

    @cached_property
    def _files(self) -> dict[str, _File]:
        """The parquet files by name, as the Hub lists them."""
        return attempt(self, "", self._list, _PATIENCE)

    def _list(self) -> dict[str, _File]:
        files: dict[str, _File] = {}
        url: str | None = (
            f"{constants.ENDPOINT}/api/datasets/{self.repository}/tree/{self.revision}/{quote(self.folder)}"
        )
        while url is not None:
            response = get_session().get(url, headers=build_hf_headers(), timeout=_timeout())
            _check(response)
            for entry in response.json():
                name = entry["path"].rpartition("/")[2]
                if entry["type"] == "file" and name.endswith(".parquet"):
                    if "lfs" not in entry:
                        raise SomaError(
                            f"The Hub lists no SHA-256 of {self.locate(name)}; set the source's `path` to a copy."
                        )
                    files[name] = _File(entry["lfs"]["size"], entry["lfs"]["oid"])
            url = response.links.get("next", {}).get("url")
        return files

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"


def _timeout() -> tuple[float, float, float, float]:
    """Return the seconds to connect, read, write and wait for a connection; huggingface_hub itself has no limit."""
    read = float(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    return _CONNECT, read, read, read


def _check(response: Any) -> None:
    if response.status_code in (401, 404):  # the Hub answers 401 for what is not public or not there
        raise FileNotFoundError(str(response.url))
    hf_raise_for_status(response)


def _exactly(size: int, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield chunks; raise an error at the end of an answer that is too short, or before bytes that are too many."""
    received = 0
    for chunk in chunks:
        received += len(chunk)
        if received > size:
            break
        yield chunk
    if received != size:
        raise OSError(f"{size} bytes were requested, but {received} or more came")


class _Ranges(io.RawIOBase):
    """A file on the Hub as a stream; every read is one request."""

    def __init__(self, folder: HubFolder, name: str, size: int) -> None:
        self._folder, self._name, self._size, self._at = folder, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view, start = memoryview(buffer).cast("B"), self._at
        stop = min(start + len(view), self._size)
        if stop <= start:
            return 0
        with self._folder.range(self._name, start, stop) as chunks:
            for chunk in chunks:
                view[self._at - start : self._at - start + len(chunk)] = chunk
                self._at += len(chunk)
        return stop - start
