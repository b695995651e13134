"""Steps from sources to evaluation sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from soma.data.choose import build_external, build_held_out
from soma.data.download import download
from soma.data.encode import Role, encode
from soma.manifest import read_json
from soma.settings.data import Data, Source


def download_source(settings: Path, output: Path) -> None:
    """A source's documents, whole, under `output`."""
    source: Any = TypeAdapter(Source).validate_python(read_json(settings)["source"])
    download(source, output)


def encode_role(settings: Path, role: Role, source: Path, output: Path) -> None:
    """One byte file and a document index."""
    encode(role, Data.model_validate(read_json(settings)), source, output)


def build_set(
    settings: Path, role: Literal["validation", "test", "external"], train: Path, corpus: Path, output: Path
) -> None:
    """The windows of an evaluation set."""
    read = read_json(settings)
    data = Data.model_validate(read["data"])
    if role == "external":
        build_external(data, train, corpus, output)
    else:
        build_held_out(role, data, read["seed"], train, corpus, output)
