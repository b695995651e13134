"""Atomic writes and JSON, so that a file is either complete or absent."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from soma.errors import SomaError


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `target` when the block ends without an error.

    A reader sees either the old file or the complete new one, even after a kill or a power cut: the bytes are on disk
    before the rename. After an error the temporary file is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o644)  # last, since writers may replace the temporary file by one of their own
        with temporary.open("rb+") as f:
            os.fsync(f.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a temporary directory that replaces `target` when the block ends without an error."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    os.chmod(temporary, 0o755)
    try:
        yield temporary
        if target.exists():
            shutil.rmtree(target)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_bytes(target: Path, data: bytes) -> None:
    """Write a whole file atomically."""
    with atomic_path(target) as path:
        path.write_bytes(data)


def write_json(target: Path, value: Any) -> None:
    """Write readable, key-sorted JSON atomically."""
    write_bytes(target, (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON; raise a `SomaError` that names the file if it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SomaError(f"{path} is missing; run the rule that makes it (snakemake {path}).") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SomaError(f"{path} is not readable JSON ({error}); delete it and run the rule that makes it.") from None
