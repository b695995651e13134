"""A folder of your own text: `.txt`, `.jsonl` and `.parquet`, searched recursively, in sorted order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from soma.config.data import TextSource
from soma.data.sources.base import Document, Part
from soma.data.sources.parquet import check_columns, texts
from soma.errors import SomaError
from soma.files.hashes import sha256_json
from soma.files.tables import damaged

PART_BYTES = 256 << 20
"""Files are read together until they reach this size; a larger file is a part of its own."""


def parts(source: TextSource) -> list[Part]:
    """Return parts of consecutive files, about 256 MB each; names that begin with a dot are skipped."""
    root = Path(source.path).expanduser()
    if not root.is_dir():
        raise SomaError(f"{root} is not a folder; set the source's `path` to one that holds text files.")
    paths = ((path.relative_to(root), path) for path in root.rglob("*") if path.suffix.lower() in _READERS)
    listing = sorted(
        (relative.as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for relative, path in paths
        if not any(name.startswith(".") for name in relative.parts) and path.is_file()
    )
    if not listing:
        raise SomaError(f"{root} holds no {', '.join(_READERS)} file; put text there or name another folder.")
    batches: list[list[tuple[str, int, int]]] = [[]]
    size = 0
    for entry in listing:
        if batches[-1] and size + entry[1] > PART_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(entry)
        size += entry[1]
    return [
        Part(
            batch[0][0] if len(batch) == 1 else f"{batch[0][0]} ... {batch[-1][0]}",
            sha256_json(batch),
            partial(_read, root, [name for name, _, _ in batch], source.column),
        )
        for batch in batches
    ]


def _read(root: Path, names: list[str], column: str) -> Iterator[Document]:
    for name in names:
        path = root / name
        yield from _READERS[path.suffix.lower()](path, name, column)


def _read_txt(path: Path, name: str, column: str) -> Iterator[Document]:
    yield Document(name, path.read_bytes())


def _read_jsonl(path: Path, name: str, column: str) -> Iterator[Document]:
    start = 0
    with path.open("rb") as f:
        for number, line in enumerate(f, start=1):
            where = f"{path}, line {number}"
            try:
                if line.strip():
                    value = json.loads(line.decode())
                    yield Document(f"{name}:{number}", _field(value, column, where))
            except UnicodeDecodeError as error:
                raise SomaError(
                    f"{where} is not valid UTF-8 (byte {start + error.start} of the file); convert it."
                ) from None
            except json.JSONDecodeError as error:
                raise SomaError(f"{where} is not valid JSON ({error}); repair or remove it.") from None
            start += len(line)


def _field(value: object, column: str, where: str) -> bytes:
    if not isinstance(value, dict) or column not in value:
        raise SomaError(f"{where} has no field `{column}`; set the source's `column` to the one with the text.")
    text = value[column]
    if text is None:
        return b""
    if not isinstance(text, str):
        raise SomaError(f"{where}: the field `{column}` is not a string; name a field that holds text.")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise SomaError(f"{where}: the text has half a surrogate pair ({error}); repair or remove it.") from None


def _read_parquet(path: Path, name: str, column: str) -> Iterator[Document]:
    with damaged(path, "fetch or write it again"), pq.ParquetFile(path) as file:
        check_columns(file.schema_arrow, [column], str(path))
        row = 0
        for batch in file.iter_batches(batch_size=512, columns=[column]):
            for text in texts(batch.column(0), str(path)):
                yield Document(f"{name}:{row}", text)
                row += 1


_READERS = {".txt": _read_txt, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
