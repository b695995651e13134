"""The step `evaluation-set`: the windows of an evaluation set."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from soma.config.base import Model, Seed, read_as
from soma.config.data import Data
from soma.data.build_sets import build_external, build_held_out
from soma.data.encode import check_encoded


class Settings(Model):
    seed: Seed
    data: Data


def evaluation_set(
    settings: Path, role: Literal["validation", "test", "external"], train: Path, corpus: Path, output: Path
) -> None:
    """Build the windows of an evaluation set."""
    read = read_as(Settings, settings)
    check_encoded(train, "train")
    check_encoded(corpus, role)
    if role == "external":
        build_external(read.data, train, corpus, output)
    else:
        build_held_out(role, read.data, read.seed, train, corpus, output)
