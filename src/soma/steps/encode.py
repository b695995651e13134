"""The step `encode`: documents as bytes."""

from __future__ import annotations

from pathlib import Path

from soma.config.data import Data
from soma.data import encode as encoding
from soma.files.atomic import read_json


def encode(settings: Path, role: encoding.Role, source: Path, output: Path) -> None:
    """Write a role's byte file and document index."""
    encoding.encode(role, Data.model_validate(read_json(settings)), source, output)
