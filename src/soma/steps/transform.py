"""The step `transform`: the features of every training window."""

from __future__ import annotations

from pathlib import Path

from soma.config.base import read_as
from soma.config.data import WindowSettings
from soma.data.encode import check_encoded
from soma.data.windows import TrainWindows
from soma.routing.features import Features, transform_all


def transform(settings: Path, train: Path, features: Path, output: Path, workers: int) -> None:
    """Compute features of every training window."""
    check_encoded(train, "train")
    transform_all(
        TrainWindows(train, read_as(WindowSettings, settings).window), Features.load(features), output, workers
    )
