"""Step 1, `download`: store a source as a folder of parquet pieces with a manifest.

Layout of the folder:
    documents-00000.parquet, ...   one per part of the source; columns id, text (bytes), split, group, host
    manifest.json                  source settings, contents of each piece, counts and hashes

Files are written to `<folder>.partial/`, whose `progress.json` records every finished piece: an interrupted download
continues after the last one, and the folder itself appears only when it is complete. A file of the Hub that is needed
as a whole is first copied to `<folder>.partial/copies/`, where an interrupted copy goes on at its last byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from soma.config.data import Source
from soma.data.sources import Document, Part, parts
from soma.errors import SomaError
from soma.files.atomic import atomic_path, check_own, move_directory, read_json, remove_directory, write_json
from soma.files.hashes import check_files, describe_files

FORMAT = 1
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "text": pa.large_binary(),
        "split": pa.string(),
        "group": pa.string(),
        "host": pa.string(),
    }
)
_ROW_GROUP_DOCUMENTS, _ROW_GROUP_BYTES = 4096, 8 << 20
_COPIES = "copies"
_WRITTEN = ("documents-*.parquet", "progress.json", "manifest.json", f"{_COPIES}/*.parquet")
_LARGEST_DOCUMENT = 1 << 30  # parquet cannot hold a value of 2 GB


def download(source: Source, directory: Path) -> dict[str, Any]:
    """Download a source to `directory`, or resume an interrupted download of the same source.

    Returns:
        The manifest: `source`, `documents`, `bytes`, `empty` (documents skipped because they contain no text),
        `text_sha256` (of the pieces' hashes), `pieces` (file, name, groups and counts of each; `text_sha256` is the
        hash of its documents' concatenated bytes) and `files` (size and hash).

    Raises:
        SomaError: the source is missing, damaged or without text.
    """
    todo = parts(source)
    settings = {
        "format": FORMAT,
        "source": source.model_dump(mode="json"),
        "parts": [[part.name, part.stamp] for part in todo],
    }
    partial = directory.with_name(directory.name + ".partial")
    pieces = _resume(partial, settings)
    for index in tqdm(range(len(pieces), len(todo)), desc="download", unit="piece", disable=None):
        pieces.append(_write_piece(todo[index], partial, f"documents-{index:05d}.parquet", str(source.source)))
        write_json(partial / "progress.json", {"settings": settings, "pieces": pieces})

    totals = {key: sum(piece[key] for piece in pieces) for key in ("documents", "bytes", "empty")}
    if not totals["documents"]:
        raise SomaError(f"The source `{source.source}` has no document with text; name one that has.")
    manifest = {
        "format": FORMAT,
        "source": settings["source"],
        **totals,
        "text_sha256": hashlib.sha256("".join(p["text_sha256"] for p in pieces).encode()).hexdigest(),
        "pieces": [{key: value for key, value in piece.items() if key != "stored"} for piece in pieces],
        "files": {piece["file"]: piece["stored"] for piece in pieces},
    }
    write_json(partial / "manifest.json", manifest)
    move_directory(partial, directory, _WRITTEN)
    (directory / "progress.json").unlink()
    return manifest


def open_documents(directory: Path, wanted: range | None = None) -> Iterator[Document]:
    """Stream the documents of a download; each piece's hash is checked before it is read.

    Args:
        wanted: consecutive positions of documents; None: all. Pieces without one of them are not read.

    Raises:
        SomaError: a piece is missing or altered.
    """
    manifest = read_manifest(directory)
    wanted = range(manifest["documents"]) if wanted is None else wanted
    start = 0
    for piece in manifest["pieces"]:
        own = range(max(wanted.start - start, 0), min(wanted.stop - start, piece["documents"]))
        start += piece["documents"]
        if own:
            check_files(directory, {piece["file"]: manifest["files"][piece["file"]]})
            yield from _rows(directory / piece["file"], own)


def _rows(path: Path, wanted: range) -> Iterator[Document]:
    """Read consecutive rows of a piece; row groups without one of them are skipped."""
    with pq.ParquetFile(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        ends = list(accumulate(sizes))
        groups = [g for g, end in enumerate(ends) if end > wanted.start and end - sizes[g] < wanted.stop]
        first = ends[groups[0]] - sizes[groups[0]]
        rows = (
            Document(*row)
            for batch in file.iter_batches(batch_size=512, row_groups=groups)
            for row in zip(*(batch.column(key).to_pylist() for key in SCHEMA.names), strict=True)
        )
        yield from islice(rows, wanted.start - first, wanted.stop - first)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a download."""
    manifest = read_json(directory / "manifest.json")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or "pieces" not in manifest:
        raise SomaError(f"{directory} is not a download of this version; download it again.")
    return manifest


def _resume(partial: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of finished, intact pieces, and remove everything else from the partial folder."""
    pieces: list[dict[str, Any]] = []
    known: set[str] = set()
    if (partial / "progress.json").exists():
        progress = read_json(partial / "progress.json")
        if progress["settings"] == settings:
            for piece in progress["pieces"]:
                try:
                    check_files(partial, {piece["file"]: piece["stored"]})
                except SomaError:
                    break
                pieces.append(piece)
            known.add(_COPIES)
    known |= {piece["file"] for piece in pieces}
    check_own(partial, _WRITTEN)
    partial.mkdir(parents=True, exist_ok=True)
    for path in partial.iterdir():
        if path.name not in known:
            remove_directory(path, ["*"]) if path.is_dir() else path.unlink()
    return pieces


def _write_piece(part: Part, folder: Path, name: str, where: str) -> dict[str, Any]:
    groups: dict[str, None] = {}
    record: dict[str, Any] = {"file": name, "name": part.name, "documents": 0, "bytes": 0, "empty": 0}
    digest = hashlib.sha256()
    with atomic_path(folder / name) as path, pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        rows: list[Document] = []
        size = 0
        for document in part.read_copies(folder / _COPIES) if part.read_copies else part.read():
            groups.setdefault(document.group)
            if not document.text.strip():
                record["empty"] += 1
                continue
            _check(document, where)
            digest.update(document.text)
            rows.append(document)
            size += len(document.text)
            record["documents"] += 1
            record["bytes"] += len(document.text)
            if len(rows) == _ROW_GROUP_DOCUMENTS or size >= _ROW_GROUP_BYTES:
                writer.write_table(_table(rows))
                rows, size = [], 0
        if rows:
            writer.write_table(_table(rows))
    remove_directory(folder / _COPIES, ["*"])
    record["groups"] = list(groups)
    record["text_sha256"] = digest.hexdigest()
    record["stored"] = describe_files(folder, [name])[name]
    return record


def _table(rows: list[Document]) -> pa.Table:
    return pa.table(
        {key: [getattr(row, key) for row in rows] for key in SCHEMA.names},
        schema=SCHEMA,
    )


def _check(document: Document, where: str) -> None:
    if len(document.text) > _LARGEST_DOCUMENT:
        raise SomaError(
            f"The document {document.id} of the source `{where}` is longer than 1 GiB; cut it into documents."
        )
    try:
        document.text.decode()
    except UnicodeDecodeError as error:
        raise SomaError(
            f"The document {document.id} of the source `{where}` is not valid UTF-8 (byte {error.start}); "
            "convert or remove it."
        ) from None
