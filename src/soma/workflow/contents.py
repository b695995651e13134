"""Hashes of a campaign's files: what jobs recorded when they wrote them, or else read once.

The machine that submits jobs would take an hour to read a campaign of the paper's size, all of which the jobs have
hashed already. A recorded hash counts for a file of the recorded size that has not been written since. So the manifest
says what a job wrote, and `soma verify`, which reads everything, finds what was damaged later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from soma.errors import SomaError
from soma.files.atomic import read_json
from soma.files.hashes import sha256_file

_INDICES = ("corpus/*/manifest.json", "sets/*.json", "routing/*/*.json", "shards/*/shards.json", "manifest.json")
"""Files with size and hash of others in their folder, as `files`; the last is the manifest of an earlier run."""
_RECORDS = "runs/*/*/run.json"
"""Files with the hash of each of a part's safetensors files, such as `weights_sha256`."""


class Contents:
    """Size and hash of every file of a campaign, as it was when this was made or first asked."""

    def __init__(self, results: Path) -> None:
        self._known: dict[Path, dict[str, Any]] = {}
        for index, name, known in _recorded(results):
            path = index.parent / name
            try:
                file, written = path.stat(), index.stat().st_mtime_ns
            except OSError:
                continue
            if file.st_size == known.get("bytes", file.st_size) and file.st_mtime_ns <= written:
                self._known[path] = {"bytes": file.st_size, "sha256": known["sha256"]}

    def of(self, path: Path) -> dict[str, Any]:
        """Return size and SHA-256 of a file, as {bytes, sha256}."""
        path = Path(os.path.normpath(path))
        if path not in self._known:
            self._known[path] = {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        return self._known[path]


def _recorded(results: Path) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Yield each index with the name of a file and what it says of it; a damaged index says nothing."""
    results = Path(os.path.normpath(results))
    for index in sorted(path for pattern in (*_INDICES, _RECORDS) for path in results.glob(pattern)):
        try:
            content = read_json(index)
        except SomaError:
            continue
        if not isinstance(content, dict):
            continue
        files = content.get("files")
        for name, known in files.items() if isinstance(files, dict) else ():
            if isinstance(known, dict) and "sha256" in known:
                yield index, name, known
        if index.name == "run.json":
            for name in ("weights", "milestones", "leg"):
                if known := content.get(f"{name}_sha256"):
                    yield index, f"{name}.safetensors", {"sha256": known}
