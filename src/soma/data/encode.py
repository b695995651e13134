"""Step 2, `encode`: join the documents of one role in one byte file, with an index of their positions.

Layout of the folder:
    bytes.bin           documents joined by the separator, as raw UTF-8
    documents.parquet   position (in the source), id, offset and length (bytes, in bytes.bin), sha256 of the text,
                        normalised_sha256 (of the text after NFKC, case folding and collapsing whitespace),
                        split, group, host
    manifest.json       role, source, counts, hashes

A long text is encoded in parts, by jobs of their own, which `join` puts together to the same bytes. The folder of a
part has the same files, with `part.json` in place of the manifest.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq

from soma.config.data import Data, Source
from soma.data.download import open_documents, read_manifest
from soma.data.sources import Document
from soma.errors import SomaError
from soma.files.atomic import atomic_directory, read_json, write_json
from soma.files.hashes import check_files, describe_files
from soma.files.parts import WHOLE, range_of

Role = Literal["train", "validation", "test", "external"]

FORMAT = 1
SCHEMA = pa.schema(
    {
        "position": pa.int64(),
        "id": pa.string(),
        "offset": pa.int64(),
        "length": pa.int64(),
        "sha256": pa.binary(32),
        "normalised_sha256": pa.binary(32),
        "split": pa.string(),
        "group": pa.string(),
        "host": pa.string(),
    }
)
_WRITTEN = ("bytes.bin", "documents.parquet", "manifest.json")
_WRITTEN_PART = ("bytes.bin", "documents.parquet", "part.json")
_ROW_GROUP = 1 << 16
_BLOCK = 1 << 24

# ASCII needs no NFKC, and case folding is lower-casing; str.split also splits at the four separators 0x1c to 0x1f.
_ASCII_FOLD = bytes(0x20 if 0x1C <= c <= 0x1F else c + 32 if 0x41 <= c <= 0x5A else c for c in range(256))


def normalised(text: bytes) -> bytes:
    """Normalise text by NFKC, case folding and collapsing whitespace (docs/paper.md section 2); UTF-8."""
    if text.isascii():
        return b" ".join(text.translate(_ASCII_FOLD).split())
    return " ".join(unicodedata.normalize("NFKC", text.decode()).casefold().split()).encode()


def role_source(role: Role, data: Data) -> Source:
    """Return the source whose download a role reads; sets held out by position read the training source."""
    if role == "train":
        return data.train
    if role == "external":
        return data.external.source
    held = data.validation if role == "validation" else data.test
    return held.source or data.train


def membership(role: Role, data: Data) -> Callable[[int], bool]:
    """Return a test for the positions in a role's source that belong to the role.

    Training keeps what neither validation nor test holds out by position, so the three are disjoint.
    """
    if role == "train":
        out = [(h.every, h.at) for h in (data.validation, data.test) if h.source is None]
        return lambda position: all(position % every != at for every, at in out)
    held = {"validation": data.validation, "test": data.test}.get(role)
    if held is None or held.source is not None:
        return lambda position: True
    return lambda position: position % held.every == held.at


def encode(role: Role, data: Data, source_directory: Path, output: Path) -> dict[str, Any]:
    """Write the byte file and the document index of a role, atomically and in constant memory.

    Args:
        source_directory: a download of `role_source(role, data)`.
        output: folder to create or replace.

    Returns:
        The manifest: `role`, `source`, `source_text_sha256`, `separator`, `documents`, `text_bytes` (without
        separators) and `files` (size and hash of both files).

    Raises:
        SomaError: the download is of another source, damaged, or has no document for the role.
    """
    with atomic_directory(output, _WRITTEN) as folder:
        manifest = _encode(role, data, source_directory, folder, WHOLE)
        if not manifest["documents"]:
            raise SomaError(
                f"No document of {source_directory} belongs to the {role} set; the source has "
                f"{read_manifest(source_directory)['documents']} documents, so lower `every` or name a larger source."
            )
        write_json(folder / "manifest.json", manifest)
    return manifest


def encode_part(role: Role, data: Data, source_directory: Path, output: Path, part: str) -> None:
    """Write one of several parts of what `encode` writes, such as `3-of-7`, which may be empty; arguments as there."""
    with atomic_directory(output, _WRITTEN_PART) as folder:
        manifest = _encode(role, data, source_directory, folder, part)
        write_json(folder / "part.json", {**manifest, "part": part})


def join(parts: Sequence[Path], output: Path) -> None:
    """Join all parts, in order, to what `encode` would have written.

    Raises:
        SomaError: a part is missing, damaged, or of another text, or all are empty.
    """
    records = [read_json(directory / "part.json") for directory in parts]
    common = {key: records[0][key] for key in _COMMON}
    for i, (directory, record) in enumerate(zip(parts, records, strict=True), start=1):
        if record["part"] != f"{i}-of-{len(parts)}" or any(record[key] != common[key] for key in _COMMON):
            raise SomaError(f"{directory} is not part {i}-of-{len(parts)} of the same text; encode the parts again.")
    with atomic_directory(output, _WRITTEN) as folder:
        with _Writer(folder, common["separator"].encode()) as writer:
            for directory, record in zip(parts, records, strict=True):
                check_files(directory, {"documents.parquet": record["files"]["documents.parquet"]})
                if record["documents"]:
                    writer.append(directory, record["files"]["bytes.bin"])
        manifest = writer.describe(common)
        if not manifest["documents"]:
            raise SomaError(f"No document belongs to the {common['role']} set; lower `every` or name a larger source.")
        write_json(folder / "manifest.json", manifest)


_COMMON = ("format", "role", "source", "source_text_sha256", "separator")


def _encode(role: Role, data: Data, source_directory: Path, folder: Path, part: str) -> dict[str, Any]:
    """Write both files of a part to a folder, and return its manifest."""
    download = read_manifest(source_directory)
    if download["source"] != role_source(role, data).model_dump(mode="json"):
        raise SomaError(
            f"{source_directory} was downloaded with other settings than the {role} source now has; download it again."
        )
    belongs = membership(role, data)
    wanted = range_of(part, download["documents"])
    with _Writer(folder, data.separator.encode()) as writer:
        for position, document in zip(wanted, open_documents(source_directory, wanted), strict=True):
            if belongs(position):
                writer.add(position, document)
    return writer.describe(
        {
            "format": FORMAT,
            "role": role,
            "source": download["source"],
            "source_text_sha256": download["text_sha256"],
            "separator": data.separator,
        }
    )


class _Writer:
    """The byte file and the document index in the making."""

    def __init__(self, folder: Path, separator: bytes) -> None:
        self._folder, self._separator = folder, separator
        self._digest = hashlib.sha256()
        self._size = self._documents = self._text_bytes = 0
        self._rows: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stream = self._stack.enter_context((self._folder / "bytes.bin").open("wb"))
        index = pq.ParquetWriter(self._folder / "documents.parquet", SCHEMA, compression="zstd")
        self._index = self._stack.enter_context(index)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stack:
            if kind is None and self._rows["position"]:
                self._index.write_table(pa.table(self._rows, schema=SCHEMA))

    def add(self, position: int, document: Document) -> None:
        """Write a document."""
        text = document.text
        self._separate()
        known = (hashlib.sha256(text).digest(), hashlib.sha256(normalised(text)).digest())
        row = (position, document.id, self._size, len(text), *known, document.split, document.group, document.host)
        self._write(text)
        self._describe(row)

    def append(self, directory: Path, known: dict[str, Any]) -> None:
        """Write the documents of a part, whose byte file has a known size and hash."""
        self._separate()
        start, digest = self._size, hashlib.sha256()
        with (directory / "bytes.bin").open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                self._write(block)
        if digest.hexdigest() != known["sha256"]:
            raise SomaError(
                f"{directory / 'bytes.bin'} does not have the hash in its part.json; encode the part again."
            )
        with pq.ParquetFile(directory / "documents.parquet") as index:
            for batch in index.iter_batches():
                for row in batch.to_pylist():
                    self._describe(tuple((row | {"offset": row["offset"] + start}).values()))

    def describe(self, about: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest of the finished files, which includes what is given."""
        return {
            **about,
            "documents": self._documents,
            "text_bytes": self._text_bytes,
            "files": {
                "bytes.bin": {"bytes": self._size, "sha256": self._digest.hexdigest()},
                **describe_files(self._folder, ["documents.parquet"]),
            },
        }

    def _separate(self) -> None:
        if self._documents:
            self._write(self._separator)

    def _write(self, content: bytes) -> None:
        self._stream.write(content)
        self._digest.update(content)
        self._size += len(content)

    def _describe(self, row: tuple[Any, ...]) -> None:
        for column, value in zip(self._rows.values(), row, strict=True):
            column.append(value)
        self._text_bytes += self._rows["length"][-1]
        self._documents += 1
        if self._documents % _ROW_GROUP == 0:
            self._index.write_table(pa.table(self._rows, schema=SCHEMA))
            self._rows = {name: [] for name in SCHEMA.names}


def read_encoded(directory: Path, role: Role) -> dict[str, Any]:
    """Return the manifest of an encoded role, after checking the role and the file sizes.

    Hashes are left to the caller (`check_encoded`): reading 100 GB at every start would be too slow.
    """
    manifest = read_json(directory / "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or "role" not in manifest:
        raise SomaError(f"{directory} is not an encoded corpus of this version; encode it again.")
    if manifest["role"] != role:
        raise SomaError(f"{directory} holds the {manifest['role']} text where {role} is expected.")
    for name, known in manifest["files"].items():
        path = directory / name
        size = path.stat().st_size if path.exists() else None
        if size != known["bytes"]:
            raise SomaError(
                f"{path} has {size if size is not None else 'no'} bytes where its manifest says {known['bytes']}; "
                f"encode the {role} text again."
            )
    return manifest


def check_encoded(directory: Path, role: Role) -> None:
    """Raise a `SomaError` unless the text and the documents of an encoded corpus have their recorded hashes."""
    check_files(directory, read_encoded(directory, role)["files"])
