"""The step `download`: the documents of a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from soma.config.data import Source
from soma.data import download as documents
from soma.files.atomic import read_json


def download(settings: Path, output: Path) -> None:
    """Download all documents of a source to `output`."""
    source: Any = TypeAdapter(Source).validate_python(read_json(settings)["source"])
    documents.download(source, output)
