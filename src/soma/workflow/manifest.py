"""The manifest of a campaign: size and hash of every file that a run of it makes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from soma.config.base import Record, read_as
from soma.files.atomic import write_json
from soma.files.hashes import describe_files
from soma.workflow.contents import Contents

_LEFT_OUT = Path(".dvcignore")


ADOPTIONS = "adoptions.json"
"""File in which a campaign keeps the evidence for its adoptions (`soma.commands.adopt`), newest last."""


_UNCHECKED = (
    *("logs", "benchmarks", "resume", "settings", "report.html", "demo.html", "manifest.json", "provenance.json"),
    ADOPTIONS,
)
"""Files left out of a manifest, because another run of the same campaign may write them differently."""


def write_manifest(results: Path, contents: Contents) -> None:
    """Record size and hash of every file of a finished campaign."""
    files = {name: contents.of(results / name) for name in sorted(checked_files(results))}
    write_json(results / "manifest.json", {"files": files})


class _File(Record):
    bytes: int
    sha256: str


class _Manifest(Record):
    files: dict[str, _File]


def recorded_files(results: Path) -> dict[str, Any]:
    """Return size and hash of every file in a campaign's manifest, by name.

    Raises:
        SomaError: if the manifest is missing or damaged.
    """
    return read_as(_Manifest, results / "manifest.json").model_dump()["files"]


def refresh_manifest(results: Path, changed: Sequence[str]) -> None:
    """Record size and hash of rewritten files, if the campaign has a manifest."""
    path = results / "manifest.json"
    if path.exists():
        known = recorded_files(results)
        write_json(path, {"files": known | describe_files(results, [name for name in changed if name in known])})


def stays(path: Path) -> bool:
    """Return True if .dvcignore keeps a file out of DVC."""
    return _left_out().match_file(os.path.relpath(path))


@cache
def _left_out() -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(_LEFT_OUT.read_text().splitlines() if _LEFT_OUT.exists() else [])


def checked_files(results: Path) -> set[str]:
    paths = (p.relative_to(results) for p in results.rglob("*") if p.is_file())
    return {p.as_posix() for p in paths if not _unchecked(p)}


def _unchecked(path: Path) -> bool:
    """Return True for files left out of the manifest, including downloads, text of shards and hidden names.

    Downloads and the text of shards, which can be made again from the corpus, have hashes in manifests of their own and
    are not versioned. Hidden names are markers of Snakemake and DVC, and files that a killed job left incomplete.
    """
    download = path.parts[0] == "corpus" and path.parts[1].startswith("source-")
    copied = download or (path.parts[0] == "shards" and path.name == "text.bin")
    return path.parts[0] in _UNCHECKED or copied or any(part.startswith(".") for part in path.parts)
