"""Repetition of recorded commands in a throw-away copy of a campaign, with a comparison of their outputs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soma.catalogue import MEASUREMENTS
from soma.commands.replay.comparison import Agreement, Allowed, Comparison, Different
from soma.files.atomic import read_json, write_json
from soma.files.hashes import sha256_file
from soma.files.tables import read_rows

ALLOWED = Allowed("sums of numpy and torch, which depend on the processor", digits=6)
"""Allowed difference between numbers in rows, whose bytes depend on the processor."""
_TIMES = ("seconds", "per_second", "share", "device", "peak")
"""Substrings in the names of their columns that depend on time or machine."""
_TIMED = {name for name, measurement in MEASUREMENTS.items() if measurement.timed}
_OWN = ("logs", "settings", "resume")
"""Folders that are not linked into the copy."""


class Copy:
    """A copy of the project in a folder, with links to everything except the outputs of commands."""

    def __init__(self, folder: Path, results: Path, settings: Mapping[str, Any]) -> None:
        """Link the project into `folder` and write the rules' settings there.

        Args:
            folder: an empty folder, outside the project.
            results: folder of the campaign, relative to the project's folder.
            settings: settings files of the rules, by name (`soma.workflow.settings.settings_files`).
        """
        self.folder = folder
        for path in Path().iterdir():
            if not path.name.startswith(".") and path.name != results.parts[0]:
                (folder / path).symlink_to(path.absolute())
        for path in results.iterdir():
            if path.name not in _OWN:
                self._link(path)
        for name, value in settings.items():
            write_json(folder / results / "settings" / f"{name}.json", value)

    def rerun(self, command: str, targets: Sequence[str], inputs: Sequence[str]) -> Comparison:
        """Run a recorded command again and compare its outputs with the recorded ones.

        Args:
            command: a call of `python -m soma.cli`.
            targets: its outputs; those missing from the campaign's folder are not compared.
            inputs: its inputs.
        """
        what = f"{len(targets)} file(s) regenerated"
        missing = [path for path in inputs if not Path(path).exists()]
        compared = [target for target in targets if Path(target).exists()]
        if missing or not compared:
            lacking = missing[0] if missing else targets[0]
            return Comparison(targets[0], None, what, "not here", reason=f"{lacking} is missing")
        for target in targets:
            (self.folder / target).unlink(missing_ok=True)
        words = shlex.split(command)
        if "--log" in words:  # what the command has to say is wanted here, not in a file of the copy
            del words[(at := words.index("--log")) : at + 2]
        call = [sys.executable, *words[words.index("-m") :]]
        done = subprocess.run(call, cwd=self.folder, env=os.environ, capture_output=True, text=True, check=False)
        agreement = Agreement(ALLOWED)
        try:
            if done.returncode:
                last_line = (done.stderr or done.stdout).strip().splitlines()[-1:]
                raise Different("exit status", reason=" ".join(last_line))
            for target in compared:
                _compare(target, self.folder / target, agreement)
        except Different as difference:
            return Comparison(targets[0], None, what, "differs", **difference.details)
        finally:  # the next command must read the recorded files
            for target in targets:
                (self.folder / target).unlink(missing_ok=True)
            for target in compared:
                self._link(Path(target))
        digits = agreement.digits()
        if digits is None:
            return Comparison(targets[0], None, what, "identical")
        return Comparison(targets[0], None, what, "agrees", digits=digits, reason=ALLOWED.reason)

    def _link(self, path: Path) -> None:
        """Link a file, or every file of a folder."""
        for file in (p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / file).symlink_to(file.absolute())


def _compare(recorded: str, made: Path, agreement: Agreement) -> None:
    """Compare a file with the recorded one: numbers as numbers, all else by bytes."""
    known = Path(recorded)
    if not made.exists():
        raise Different(known.name, reason="it was not made")
    if sha256_file(known) == sha256_file(made):
        return
    if known.suffix not in _READ:
        raise Different(known.name, reason="its content differs")
    ours, theirs = (dict(_READ[known.suffix](path)) for path in (known, made))
    agreement.same(f"{known.name}, names", list(ours), list(theirs))
    for name, values in ours.items():
        field, repeated = f"{known.name}, {name}", theirs[name]
        if known.stem in _TIMED and any(part in name for part in _TIMES):
            continue
        agreement.same(f"{field}, shape", values.shape, repeated.shape)
        if values.dtype.kind == "f" and repeated.dtype.kind == "f":
            for value, here in zip(values.ravel(), repeated.ravel(), strict=True):
                agreement.close(field, value, here)
        elif not np.array_equal(values, repeated):
            raise Different(field, reason="its values differ")


Named = Iterator[tuple[str, NDArray[Any]]]
"""Values of a file by name: floats as numbers, all others as objects that must be equal."""


def _rows(path: Path) -> Named:
    frame = read_rows(path)
    for name in frame.columns:
        column = frame[name]
        yield name, column.to_numpy() if column.dtype.kind == "f" else np.array([repr(v) for v in column])


def _arrays(path: Path) -> Named:
    with np.load(path, allow_pickle=False) as arrays:
        yield from arrays.items()


def _leaves(path: Path) -> Named:
    """Yield the leaves of a JSON file except hashes, which follow from other compared values."""

    def walk(name: str, value: Any) -> Named:
        if isinstance(value, dict | list):
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                yield from walk(f"{name}.{key}", part)
        elif not (isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)):
            yield name, np.array(value if isinstance(value, float) else repr(value))

    return walk("", read_json(path))


_READ: dict[str, Callable[[Path], Named]] = {".parquet": _rows, ".npz": _arrays, ".json": _leaves}
