"""The evaluation-set step: from bytes to evaluation sets."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from soma.data.choose import build_external, build_held_out
from soma.manifest import read_json
from soma.settings.data import Data


def build_set(
    settings: Path, role: Literal["validation", "test", "external"], train: Path, corpus: Path, output: Path
) -> None:
    """Build the windows of an evaluation set."""
    read = read_json(settings)
    data = Data.model_validate(read["data"])
    if role == "external":
        build_external(data, train, corpus, output)
    else:
        build_held_out(role, data, read["seed"], train, corpus, output)
