"""Interface of all sources: documents, in parts that can be read again one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


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
    """

    name: str
    stamp: str
    read: Callable[[], Iterator[Document]]
