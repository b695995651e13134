"""Small corpora in the real layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from corpora import write_fineweb_file


@pytest.fixture
def fineweb(tmp_path: Path) -> Path:
    """Return a local copy of the data set: sample/100BT with four files of six row groups of 20 rows."""
    root = tmp_path / "fineweb"
    for file in range(4):
        write_fineweb_file(root / "sample" / "100BT" / f"00{file}_00000.parquet", file, groups=6)
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a folder of text files: folder("name", {"a.txt": "text", ...})."""

    def make(name: str, files: dict[str, str | bytes]) -> Path:
        root = tmp_path / name
        for file, text in files.items():
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
        return root

    return make
