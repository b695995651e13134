"""The step `transform`: the features of a part of the training windows."""

from __future__ import annotations

from pathlib import Path

from soma.config.base import read_as
from soma.config.data import WindowSettings
from soma.data.encode import check_encoded
from soma.data.windows import TrainWindows
from soma.files.parts import WHOLE
from soma.routing.features import Features, transform_part


def transform(settings: Path, train: Path, features: Path, output: Path, workers: int, part: str) -> None:
    """Compute features of a part of the training windows."""
    if part == WHOLE:  # else every part would read all of the text, which `describe-clusters` and `shard` check
        check_encoded(train, "train")
    windows = TrainWindows(train, read_as(WindowSettings, settings).window)
    transform_part(windows, Features.load(features), output, workers, part)
