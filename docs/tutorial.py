"""Run docs/tutorial.md and write what its code prints below it: `python docs/tutorial.py`, part of `make docs`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/tutorial.md"

_PULLED = (
    "evaluation", "routing", "runs/soma-n8-s0", "sets",
)  # fmt: skip
"""What the page reads of the campaign `small`."""
_GET = """
import sys
from dvc.api import DVCFileSystem

files = DVCFileSystem(sys.argv[1])
for name in sys.argv[2:]:
    files.get(name, name, recursive=True)
"""
_BLOCK = re.compile(r"```(sh|python|text)\n(.*?)```", re.S)
_END = "\x1e"
"""Printed after each block of code."""


def page() -> str:
    """Return the page with what its code prints, run in a throw-away folder with files as DVC ships them.

    Raises:
        RuntimeError: if a block fails.
    """
    text = PAGE.read_text()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("LICENSE", "config"):
            (Path(folder) / name).symlink_to(ROOT / name)
        names = [f"results/small/{name}" for name in _PULLED]
        _run(["-c", _GET, str(ROOT), *names], Path(folder))
        for line in "".join(code for kind, code in _BLOCK.findall(text) if kind == "sh").splitlines():
            _run(["-m", *line.split()], Path(folder))
        code = [code for kind, code in _BLOCK.findall(text) if kind == "python"]
        (Path(folder) / "tutorial.py").write_text("".join(f"{each}print({_END!r}, end='')\n" for each in code))
        printed = iter(_run(["tutorial.py"], Path(folder)).split(_END))
    return _BLOCK.sub(lambda block: _filled(block, printed), text)


def _filled(block: re.Match[str], printed: Iterator[str]) -> str:
    """Return a block of the page; a block of text holds what the code above it prints."""
    return f"```text\n{next(printed)}```" if block[1] == "text" else block[0]


def _run(words: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"docs/tutorial.md: `{' '.join(words)}` failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    PAGE.write_text(page())
