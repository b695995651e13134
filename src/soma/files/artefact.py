"""Folders whose JSON manifest holds the size and hash of every file; pickle is neither read nor written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from soma.errors import SomaError
from soma.files.atomic import read_json, write_json
from soma.files.hashes import check_files, describe_files, listed, sha256_json

_AGAIN = "delete it and rerun the rule that makes it."


def seal(directory: Path, kind: str, record: Mapping[str, Any], files: Iterable[str]) -> dict[str, Any]:
    """Write `<kind>.json`: the record, size and hash of `files`, and an id, the hash of all this."""
    manifest = {**record, "kind": kind, "files": describe_files(directory, list(files))}
    manifest["id"] = sha256_json(manifest)
    write_json(directory / f"{kind}.json", manifest)
    return manifest


def check(directory: Path, kind: str, *, contents: bool = True) -> dict[str, Any]:
    """Read `<kind>.json` and check the files against it: their sizes, and unless `contents` is false their hashes.

    Raises:
        SomaError: the manifest or a file is missing, truncated, altered, or of another kind.
    """
    path = directory / f"{kind}.json"
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("kind") != kind:
        raise SomaError(f"{path} is not a {kind} manifest of soma; {_AGAIN}")
    if manifest.get("id") != sha256_json({key: value for key, value in manifest.items() if key != "id"}):
        raise SomaError(f"{path} was altered after it was written; {_AGAIN}")
    if contents:
        check_files(directory, manifest["files"])
        return manifest
    for name, known in manifest["files"].items():
        file = listed(directory, name)
        size = file.stat().st_size if file.exists() else "no"
        if size != known["bytes"]:
            raise SomaError(f"{file} has {size} bytes where {path.name} says {known['bytes']}; {_AGAIN}")
    return manifest
