"""The step `join`: the parts of the encoded training text become one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from soma.data import encode as encoding


def join(parts: Sequence[Path], output: Path) -> None:
    """Join encoded parts, in order."""
    encoding.join(parts, output)
