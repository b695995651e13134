"""The step `evaluation-set`: the windows of an evaluation set."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from soma.config.data import Data
from soma.data.build_sets import build_external, build_held_out
from soma.files.atomic import read_json


def evaluation_set(
    settings: Path, role: Literal["validation", "test", "external"], train: Path, corpus: Path, output: Path
) -> None:
    """Build the windows of an evaluation set."""
    read = read_json(settings)
    data = Data.model_validate(read["data"])
    if role == "external":
        build_external(data, train, corpus, output)
    else:
        build_held_out(role, data, read["seed"], train, corpus, output)
