"""The step `encode`: documents as bytes."""

from __future__ import annotations

from pathlib import Path

from soma.config.base import read_as
from soma.config.data import Data
from soma.data import encode as encoding


def encode(settings: Path, role: encoding.Role, source: Path, output: Path) -> None:
    """Write a role's byte file and document index."""
    encoding.encode(role, read_as(Data, settings), source, output)
