"""Hashes of files and values, and the manifests that record them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soma.errors import SomaError

_CHUNK = 1 << 22


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, read in constant memory."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON (sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def describe_files(directory: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return size and hash of files for a manifest: {name: {bytes, sha256}}."""
    return {
        name: {"bytes": (directory / name).stat().st_size, "sha256": sha256_file(directory / name)} for name in names
    }


def listed(directory: Path, name: str) -> Path:
    """Return the path of a file that a manifest lists; raise a `SomaError` if it is not inside the folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise SomaError(f"the manifest of {directory} lists {name!a}, which is not inside it; make the folder again.")
    return directory / name


def check_files(directory: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise a `SomaError` unless every file has the size and hash that a manifest recorded."""
    for name, known in files.items():
        path = listed(directory, name)
        if not path.exists():
            raise SomaError(f"{path} is missing although its manifest lists it; run the rule that makes it again.")
        if path.stat().st_size != known["bytes"]:
            raise SomaError(
                f"{path} has {path.stat().st_size} bytes where its manifest says {known['bytes']}; "
                "delete it and run the rule that makes it again."
            )
        if sha256_file(path) != known["sha256"]:
            raise SomaError(
                f"{path} does not have the hash that its manifest records; "
                "delete it and run the rule that makes it again."
            )
