"""WikiText, whose rows are lines; documents are split at top-level headings and their text is left unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, pairwise

from soma.config.data import WikiTextSource
from soma.data.sources.base import Document, Part
from soma.data.sources.folder import Folder
from soma.data.sources.parquet import ParquetReader, copying, find_folder, texts
from soma.errors import SomaError
from soma.files.hashes import sha256_json

REPOSITORY = "Salesforce/wikitext"
_HEADING = re.compile(rb"^ = [^=].* = \n?$")


def parts(source: WikiTextSource) -> list[Part]:
    """Return one part per split: an article may continue from one file of a split to the next."""
    folder = find_folder(source.path, REPOSITORY, source.revision, source.config)
    names = folder.names()
    out = []
    for split in source.splits:
        files = [name for name in names if name.startswith(f"{split}-")]
        if not files:
            raise SomaError(
                f"{folder.locate('')} has no parquet file of the split `{split}` "
                f"(expected {split}-00000-of-...); check the source's path and `splits`."
            )
        stamp = sha256_json([[name, folder.stamp(name)] for name in files])
        read = partial(_read, names=files, split=split)
        out.append(Part(split, stamp, partial(read, folder), copying(folder, files, read)))
    return out


def _read(folder: Folder, names: list[str], split: str) -> Iterator[Document]:
    for i, (title, text) in enumerate(split_at_headings(_rows(folder, names))):
        yield Document(f"{split}/{i:05d} {title}".rstrip(), text, split=split)


def _rows(folder: Folder, names: list[str]) -> Iterator[bytes]:
    for name in names:
        with ParquetReader(folder, name, ("text",)) as reader:
            for group in range(reader.num_row_groups):
                yield from texts(reader.read(group).column(0), folder.locate(name))


def split_at_headings(rows: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield (title, text) of each article; the joined texts are the joined rows.

    A row is a heading if it looks like ` = Title = ` and stands between blank rows: the format alone also matches a few
    lines of prose. Text before the first heading has no title.
    """
    title, lines, previous = "", list[bytes](), b""
    for row, following in pairwise(chain(rows, [b""])):
        if _HEADING.match(row) and not previous.strip() and not following.strip():
            if text := b"".join(lines):
                yield title, text
            title, lines = row.strip(b" =\n").decode(errors="replace"), []
        lines.append(row)
        previous = row
    if text := b"".join(lines):
        yield title, text
