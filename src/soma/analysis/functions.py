"""The functions that the catalogue names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def function(package: str, name: str) -> Callable[..., Any]:
    """Return the function of a package that an entry names as `module.function`."""
    module, _, own = name.partition(".")
    named: Callable[..., Any] = getattr(import_module(f"{package}.{module}"), own)
    return named
