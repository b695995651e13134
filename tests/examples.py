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
