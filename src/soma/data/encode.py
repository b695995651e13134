"""Step 2, `encode`: join the documents of one role in one byte file, with an index of their positions.

Layout of the folder:
    bytes.bin           documents joined by the separator, as raw UTF-8
    documents.parquet   position (in the source), id, offset and length (bytes, in bytes.bin), sha256 of the text,
                        normalised_sha256 (of the text after NFKC, case folding and collapsing whitespace),
                        split, group, host
    manifest.json       role, source, counts, hashes
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from soma.config.data import Data, Source
from soma.data.download import open_documents, read_manifest
from soma.errors import SomaError
from soma.files.atomic import atomic_directory, read_json, write_json
from soma.files.hashes import check_files, describe_files

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
_ROW_GROUP = 1 << 16

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
    download = read_manifest(source_directory)
    if download["source"] != role_source(role, data).model_dump(mode="json"):
        raise SomaError(
            f"{source_directory} was downloaded with other settings than the {role} source now has; download it again."
        )
    belongs = membership(role, data)
    separator = data.separator.encode()
    digest = hashlib.sha256()
    offset = documents = text_bytes = 0
    rows: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    with atomic_directory(output, _WRITTEN) as folder:
        with (
            (folder / "bytes.bin").open("wb") as stream,
            pq.ParquetWriter(folder / "documents.parquet", SCHEMA, compression="zstd") as index,
        ):
            for position, document in enumerate(open_documents(source_directory)):
                if not belongs(position):
                    continue
                text = document.text
                if documents:
                    stream.write(separator)
                    digest.update(separator)
                    offset += len(separator)
                stream.write(text)
                digest.update(text)
                values = (
                    position,
                    document.id,
                    offset,
                    len(text),
                    hashlib.sha256(text).digest(),
                    hashlib.sha256(normalised(text)).digest(),
                    document.split,
                    document.group,
                    document.host,
                )
                for column, value in zip(rows.values(), values, strict=True):
                    column.append(value)
                offset += len(text)
                text_bytes += len(text)
                documents += 1
                if documents % _ROW_GROUP == 0:
                    index.write_table(pa.table(rows, schema=SCHEMA))
                    rows = {name: [] for name in SCHEMA.names}
            if rows["position"]:
                index.write_table(pa.table(rows, schema=SCHEMA))
        if not documents:
            raise SomaError(
                f"No document of {source_directory} belongs to the {role} set; the source has "
                f"{download['documents']} documents, so lower `every` or name a larger source."
            )
        manifest = {
            "format": FORMAT,
            "role": role,
            "source": download["source"],
            "source_text_sha256": download["text_sha256"],
            "separator": data.separator,
            "documents": documents,
            "text_bytes": text_bytes,
            "files": {
                "bytes.bin": {"bytes": offset, "sha256": digest.hexdigest()},
                **describe_files(folder, ["documents.parquet"]),
            },
        }
        write_json(folder / "manifest.json", manifest)
    return manifest


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
