"""The step `download`: the documents of a source."""

from __future__ import annotations

from pathlib import Path

from soma.config.base import Model, read_as
from soma.config.data import Source
from soma.data import download as documents


class Settings(Model):
    source: Source


def download(settings: Path, output: Path) -> None:
    """Download all documents of a source to `output`."""
    documents.download(read_as(Settings, settings).source, output)
