"""The encoding step: from documents to bytes."""

from __future__ import annotations

from pathlib import Path

from soma.data.encode import Role, encode
from soma.manifest import read_json
from soma.settings.data import Data


def encode_role(settings: Path, role: Role, source: Path, output: Path) -> None:
    """Write a role's byte file and document index."""
    encode(role, Data.model_validate(read_json(settings)), source, output)
