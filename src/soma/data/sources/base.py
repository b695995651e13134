"""Interface of all sources: documents, in parts that can be read again one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Document:
    """One text as stored in its source.

    Attributes:
        id: name of the document in its source.
        text: its bytes, unchanged.
        split: split of the source, if it has several.
        group: part of the source that it was drawn from (a row group, a topic).
        host: web host that it came from.
    """

    id: str
    text: bytes
    split: str = ""
    group: str = ""
    host: str = ""


@dataclass(frozen=True)
class Part:
    """A piece of a source that is read as a whole: the unit in which a download resumes.

    Attributes:
        name: what is read.
        stamp: a value that changes when the text may have changed.
        read: starts a new pass over the documents, in constant memory; empty documents are included.
        read_copies: the same for remote files that are needed as a whole, or None: first copies them to a folder, from
            where an earlier call stopped, and checks their hashes.
    """

    name: str
    stamp: str
    read: Callable[[], Iterator[Document]]
    read_copies: Callable[[Path], Iterator[Document]] | None = None
