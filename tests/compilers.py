"""Kernels of other C++ compilers than the one that built the installed ones, which takes ten seconds for each."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.project import ROOT

SOURCES = ROOT / "src/soma/forward/csrc"
COMPILERS = ("g++", "clang++")


def compiled(compiler: str, name: str, source: str, isa: str, folder: Path) -> Path:
    """Return the library of a kernel as a compiler builds it: the installed one, if that compiler built it.

    Args:
        name: module of the installed library, without its instruction set.
        source: file in `forward/csrc`.
    """
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    installed = Path(find_spec(f"{name}_{isa}").origin)
    if compiler == _builder(installed):
        return installed
    flags = json.loads((SOURCES / "flags.json").read_text())
    output = folder / f"{isa}.so"
    command = [compiler, *flags["all"], *flags[isa], "-shared", "-fPIC", SOURCES / source, "-o", output]
    subprocess.run(command, check=True)
    return output


def _builder(library: Path) -> str | None:
    """Return which compiler of this machine built a library, by the versions that its file holds."""
    content = library.read_bytes()
    # The C library's own part of every file holds GCC's version too.
    made_by = "clang++" if b"clang version" in content else "g++"
    if shutil.which(made_by) is None:
        return None
    said = subprocess.run([made_by, "--version"], capture_output=True, text=True, check=True).stdout
    version = said.splitlines()[0].partition(" ")[2]
    return made_by if version.encode() in content else None
