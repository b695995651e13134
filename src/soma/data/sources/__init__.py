"""Where text comes from: a Python package, your own files, FineWeb-Edu, WikiText."""

from __future__ import annotations

from soma.data.sources import fineweb, package, text, wikitext
from soma.data.sources.base import Document, Part
from soma.settings.data import FineWebSource, PackageSource, Source, TextSource

__all__ = ["Document", "Part", "parts", "same_ids"]


def parts(source: Source) -> list[Part]:
    """The parts of a source, in order.

    Raises:
        SomaError: the source is not there, or its listing does not fit the settings. Reading a part raises one
            when its content is damaged.
    """
    if isinstance(source, PackageSource):
        return package.parts(source)
    if isinstance(source, TextSource):
        return text.parts(source)
    if isinstance(source, FineWebSource):
        return fineweb.parts(source)
    return wikitext.parts(source)


def same_ids(a: Source, b: Source) -> bool:
    """Whether an id names the same document in both sources.

    Ids of a folder are relative paths, so two folders may well use one id for different texts.
    """
    if isinstance(a, TextSource) and isinstance(b, TextSource):
        return a.path == b.path
    return a.source == b.source
