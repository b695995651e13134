"""The download step: from sources to documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from soma.data.download import download
from soma.manifest import read_json
from soma.settings.data import Source


def download_source(settings: Path, output: Path) -> None:
    """Download all documents of a source to `output`."""
    source: Any = TypeAdapter(Source).validate_python(read_json(settings)["source"])
    download(source, output)
