"""The step `encode`: documents as bytes."""

from __future__ import annotations

from pathlib import Path

from soma.config.base import read_as
from soma.config.data import Data
from soma.data import encode as encoding
from soma.files.parts import WHOLE


def encode(settings: Path, role: encoding.Role, source: Path, output: Path, part: str) -> None:
    """Write a role's byte file and document index, or those of a part of it."""
    data = read_as(Data, settings)
    if part == WHOLE:
        encoding.encode(role, data, source, output)
    else:
        encoding.encode_part(role, data, source, output, part)
