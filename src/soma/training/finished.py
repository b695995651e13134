"""Finished parts, kept until the workflow has recorded them, so that nothing is ever trained twice.

Snakemake removes the outputs of a job before it runs it again, also if the outputs are whole and only its own record of
them was lost: its main process died, the folder was copied, or a cluster's job ended after the process that submitted
it. So a part publishes what it made as links to a copy of its own, which a later job of the same identity links again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from soma.errors import SomaError
from soma.files.atomic import atomic_path, read_json, remove_directory, write_json
from soma.files.hashes import check_files, describe_files
from soma.training.names import FINISHED, HOLDS, INDEX, PUBLISHED, RECORD, STATES, lock_of


def seal(folder: Path, identity: str) -> None:
    """Write the index of a finished part: its identity, and the hash of each of its files."""
    names = [name for name in PUBLISHED if (folder / name).exists()]
    write_json(folder / INDEX, {"identity": identity, "files": describe_files(folder, names)})


def whole(folder: Path, identity: str) -> bool:
    """Return True if a folder holds a finished part of this identity, undamaged."""
    try:
        index: Mapping[str, Any] = read_json(folder / INDEX)
        if index["identity"] != identity:
            return False
        check_files(folder, index["files"])
    except (SomaError, KeyError, TypeError):
        return False
    return True


def publish(folder: Path, output: Path) -> None:
    """Put the files of a finished part in the output folder: as links, or as copies where the disk has no links."""
    known = read_json(folder / INDEX)["files"]
    for name in (name for name in PUBLISHED if name in known):
        with atomic_path(output / name) as temporary:
            temporary.unlink()
            try:
                os.link(folder / name, temporary)
            except OSError:
                _copy(folder / name, temporary, output / name)


def _copy(source: Path, temporary: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, temporary)
    except OSError as error:  # it would name the source
        raise OSError(error.errno, error.strerror, str(target)) from None


def forget(resume: Path, recorded: Callable[[str], bool]) -> None:
    """Remove the finished parts that the workflow has recorded, with what else is left of their training.

    Args:
        resume: folder of all resume states of a campaign.
        recorded: returns True for the record of a part, `<run>/<part>/run.json`, that the workflow has recorded.
    """
    for folder in sorted(resume.glob(f"*/*/{FINISHED}")):
        part = folder.parent
        if recorded(f"{part.parent.name}/{part.name}/{RECORD}"):
            remove_directory(part, (*STATES, *(f"{FINISHED}/{name}" for name in HOLDS)))
            lock_of(part).unlink(missing_ok=True)
            if not any(part.parent.iterdir()):
                part.parent.rmdir()
