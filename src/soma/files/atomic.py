"""Atomic writes and JSON, so that a file is either complete or absent."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from soma.errors import SomaError

_UMASK = os.umask(0o077)  # it can only be read by changing it
"""Permissions that the user does not want new files to have, which temporary files do not know."""
os.umask(_UMASK)


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
        os.chmod(temporary, 0o666 & ~_UMASK)  # last, since writers may replace the temporary file by one of their own
        with temporary.open("rb+") as f:
            os.fsync(f.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(target: Path, holds: Collection[str]) -> Iterator[Path]:
    """Yield a temporary directory that replaces `target` when the block ends without an error.

    Args:
        holds: the files that its writer makes, as shell patterns of paths inside it.

    Raises:
        SomaError: before anything is written, if `target` is anything else than such a folder (`check_own`).
    """
    check_own(target, holds)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    os.chmod(temporary, 0o777 & ~_UMASK)
    try:
        yield temporary
        move_directory(temporary, target, holds)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_directory(made: Path, target: Path, holds: Collection[str]) -> None:
    """Put a finished directory in the place of `target`; arguments and errors as of `atomic_directory`."""
    check_own(target, holds)
    if target.exists():
        # The old one leaves by a rename, so that no moment shows half of it.
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        os.replace(target, old)
        os.replace(made, target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(made, target)


def remove_directory(target: Path, holds: Collection[str]) -> None:
    """Remove a directory if there is one; arguments and errors as of `atomic_directory`."""
    check_own(target, holds)
    shutil.rmtree(target, ignore_errors=True)


def check_own(target: Path, holds: Collection[str]) -> None:
    """Raise a `SomaError` unless `target` is free, empty, or a folder with no file but those that its writer makes.

    Args:
        holds: these files, as shell patterns of paths inside it.
    """
    if target.is_symlink():
        raise SomaError(f"{target} is a link, which is not replaced; name another place, or remove the link.")
    if not target.exists():
        return
    if not target.is_dir():
        raise SomaError(f"{target} is a file, which is not replaced by a folder; name another place.")
    if Path.cwd().resolve().is_relative_to(target.resolve()):
        raise SomaError(f"{target} is the current folder or contains it, so it is not replaced; name another place.")
    patterns = (*holds, _SNAKEMAKE)
    for path in sorted(target.rglob("*")):
        folder = path.is_dir() and not path.is_symlink()
        unfinished = None if folder else _TEMPORARY.fullmatch(path.name)
        inside = path.with_name(unfinished[1] if unfinished else path.name).relative_to(target).as_posix()
        if not any(fnmatchcase(inside, p) or (folder and p.startswith(f"{inside}/")) for p in patterns):
            raise SomaError(
                f"{target} holds `{inside}`, which was not made by what would replace this folder; move it away, or "
                "name another place."
            )


_TEMPORARY = re.compile(r"\.(.+)\.[a-z0-9_]{8}")
"""Name of the temporary file of `atomic_path`, which a kill leaves behind."""
_SNAKEMAKE = ".snakemake_timestamp"
"""File that Snakemake puts into every folder that a rule declares, as rules of the first edition did."""


def write_bytes(target: Path, data: bytes) -> None:
    """Write a whole file atomically."""
    with atomic_path(target) as path:
        path.write_bytes(data)


def write_json(target: Path, value: Any) -> None:
    """Write readable, key-sorted JSON atomically; raise a `SomaError` for a number that JSON does not have."""
    try:
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise SomaError(
            f"{target} cannot be written: a value is infinite or no number, which JSON cannot say."
        ) from None
    write_bytes(target, (text + "\n").encode())


def read_json(path: Path) -> Any:
    """Read JSON; raise a `SomaError` that names the file if it is missing, cannot be read, or is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SomaError(f"{path} is missing; run the rule that makes it (snakemake {path}).") from None
    except RecursionError:
        raise SomaError(f"{path} nests too deeply to be read; delete it and run the rule that makes it.") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number of thousands of digits
        raise SomaError(f"{path} is not readable JSON ({error}); delete it and run the rule that makes it.") from None
