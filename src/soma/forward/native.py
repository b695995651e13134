"""Compiled libraries of the package, one for each instruction set; a machine takes the fastest that it runs."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from soma.errors import SomaError

INSTRUCTION_SETS = ("avx512", "avx2", "plain")
"""Instruction sets from the fastest to the one that every machine has."""

Load = Callable[[str], ctypes.CDLL | None]
"""Returns the library for an instruction set; None if it was not built or this processor lacks the instructions."""


def fastest(load: Load, library: str, setting: str) -> tuple[str, ctypes.CDLL]:
    """Return the best instruction set, or that in SOMA_CPU_ISA, and its library.

    Args:
        library, setting: name of the library, and of the setting that avoids it, in messages.

    Raises:
        SomaError: if the library was not built, or the processor lacks the instructions.
    """
    wanted = os.environ.get("SOMA_CPU_ISA")
    if wanted is not None and wanted not in INSTRUCTION_SETS:
        raise SomaError(f"SOMA_CPU_ISA is `{wanted}`; use one of {', '.join(INSTRUCTION_SETS)}.")
    for isa in (wanted,) if wanted else INSTRUCTION_SETS:
        loaded = load(isa)
        if loaded is not None:
            return isa, loaded
    raise SomaError(
        f"{library} ({wanted or 'any instruction set'}) is not built, or not for this processor; install a C++ "
        f"compiler and reinstall the package, or set {setting} to torch."
    )


SOURCES = {
    "soma.forward._cpu": "forward/csrc/engine.cpp",
    "soma.forward._members": "forward/csrc/members.cpp",
    "soma.inference._cpu": "inference/csrc/infer.cpp",
}
"""Source of every library, in the package; its modules have the instruction set at their end."""
_PACKAGE = Path(__file__).parents[1]


def built(module: str) -> str | None:
    """Return the file of an extension module; None if it was not built.

    Raises:
        SomaError: if it was built from other sources than those that are installed.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return None
    check_sources(module.rpartition("_")[0], Path(spec.origin))
    return spec.origin


@cache
def check_sources(library: str, path: Path) -> None:
    """Raise `SomaError` if the sources of a library are here and are not those in the hash that its file holds."""
    if (_PACKAGE / SOURCES[library]).is_file() and sources_hash(library).encode() not in path.read_bytes():
        raise SomaError(f"{path} was built from other sources than this package's; reinstall the package.")


def sources_hash(library: str) -> str:
    """Return the SHA-256 of everything that a library is compiled from: its source, the headers and the flags."""
    digest = hashlib.sha256()
    csrc = _PACKAGE / "forward/csrc"
    for path in (_PACKAGE / SOURCES[library], *sorted(csrc.glob("*.h")), csrc / "flags.json"):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def open_library(path: str) -> ctypes.CDLL | None:
    """Open a shared library; None if it was built on another system."""
    try:
        return ctypes.CDLL(path)
    except OSError:
        return None


def open_kernel(path: str, problem: type[ctypes.Structure]) -> ctypes.CDLL | None:
    """Open a kernel; None if it was built on another system or this processor lacks the instructions.

    Raises:
        SomaError: if it was built from other sources, so that its problem has another size.
    """
    loaded = open_library(path)
    if loaded is None or not loaded.soma_supported():
        return None
    check_structure(path, loaded.soma_problem_bytes(), problem)
    return loaded


def check_structure(path: str, size: int, structure: type[ctypes.Structure]) -> None:
    """Raise `SomaError` unless a library has the size of a structure that it is passed."""
    if size != ctypes.sizeof(structure):
        raise SomaError(f"{path} was built from other sources than this package's; reinstall the package.")
