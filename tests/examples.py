"""Examples of the documentation, run as modules."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from tests.project import ROOT


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of code in a page of docs/."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)


def own_methods(folder: Path) -> list[str]:
    """Write the methods of docs/extending.md into a folder; return the names of their modules."""
    names = {"class SignSPSALearner": "sign_spsa", "class ConvolutionLearner": "my_methods"}
    for mark, name in names.items():
        [code] = [code for code in blocks("extending.md", "python") if mark in code]
        (folder / f"{name}.py").write_text(code)
    return list(names.values())


def imported(code: str, path: Path) -> ModuleType:
    """Write a module to a file and import it from there."""
    path.write_text(code)
    return module_at(path)


def module_at(path: Path) -> ModuleType:
    """Import the module of a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
