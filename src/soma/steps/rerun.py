"""Run recorded commands again in a throw-away copy of a campaign, and compare what they make."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from soma.provenance import content
from soma.steps.replay.comparison import Agreement, Allowed, Comparison, Different
from soma.workflow import Settings

ALLOWED = Allowed("sums of numpy and torch, which depend on the processor", digits=9)
"""Why numbers in rows need not have the same bytes."""
TIMED = ("reference", "inference")
"""Measurements that hold times, of which no two runs are the same."""
_TIMES = ("seconds", "per_second", "share", "device", "peak")
"""What the names of their columns of times, and of what times are of, contain."""
_OWN = ("logs", "settings", "resume")
"""Folders that the copy has for itself."""


class Copy:
    """A copy of the project in a folder, made of links to everything but what commands write."""

    def __init__(self, folder: Path, results: Path, settings: Mapping[str, Any]) -> None:
        """
        Args:
            folder: an empty folder, outside the project.
            results: folder of the campaign, relative to the project's.
            settings: what the rules read, by name (`plan.settings_files`).
        """
        self.folder = folder
        for path in Path().iterdir():
            if not path.name.startswith(".") and path.name != results.parts[0]:
                (folder / path).symlink_to(path.absolute())
        for path in results.rglob("*"):
            if path.is_file() and path.relative_to(results).parts[0] not in _OWN:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).symlink_to(path.absolute())
        Settings(settings, folder / results / "settings").write()

    def rerun(self, command: str, targets: Sequence[str], inputs: Sequence[str]) -> Comparison:
        """Run a recorded command again and compare the files that it makes with those that are recorded.

        Args:
            command: a call of `python -m soma.cli`.
            targets: what it makes; those that are not in the campaign's folder are not compared.
            inputs: what it reads.
        """
        what = f"{len(targets)} file(s) made again"
        missing = [path for path in inputs if not Path(path).exists()]
        compared = [target for target in targets if Path(target).exists()]
        if missing or not compared:
            lacking = missing[0] if missing else targets[0]
            return Comparison(targets[0], None, what, "not here", reason=f"{lacking} is not here")
        for target in targets:
            path = self.folder / target
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        words = shlex.split(command)
        call = [sys.executable, *words[words.index("-m") :]]
        done = subprocess.run(call, cwd=self.folder, env=os.environ, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            return Comparison(targets[0], None, what, "differs", field="status", reason=" ".join(said))
        agreement = Agreement(ALLOWED)
        try:
            for target in compared:
                _compare(target, self.folder / target, agreement)
        except Different as difference:
            return Comparison(targets[0], None, what, "differs", **difference.details)
        digits = agreement.digits()
        if digits is None:
            return Comparison(targets[0], None, what, "identical")
        return Comparison(targets[0], None, what, "agrees", digits=digits, reason=ALLOWED.reason)


def _compare(recorded: str, made: Path, agreement: Agreement) -> None:
    """Compare a file with the recorded one: rows number by number, anything else by its bytes."""
    if content(recorded) == content(str(made)):
        return
    name = Path(recorded).name
    if not name.endswith(".parquet"):
        raise Different(name, reason="its content is another")
    known, found = (pd.read_parquet(path) for path in (recorded, made))
    agreement.same(f"{name}, columns", list(known.columns), list(found.columns))
    agreement.same(f"{name}, rows", len(known), len(found))
    for column in known.columns:
        if Path(recorded).stem in TIMED and any(part in column for part in _TIMES):
            continue
        if known[column].dtype.kind == "f":
            for here, value in zip(found[column], known[column], strict=True):
                agreement.close(f"{name}, {column}", value, here)
        elif not known[column].equals(found[column]):
            raise Different(f"{name}, {column}", reason="its values are others")
