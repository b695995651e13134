"""The step `fit-features`: tf-idf weights and SVD of a sample of the training windows."""

from __future__ import annotations

from pathlib import Path

from soma.config.base import read_as
from soma.config.data import WindowSettings
from soma.config.routing import Routing
from soma.data.encode import check_encoded
from soma.data.windows import TrainWindows
from soma.routing.features import build_features


class Settings(WindowSettings):
    routing: Routing


def fit_features(settings: Path, train: Path, output: Path) -> None:
    """Fit vocabulary, tf-idf weights and SVD on a sample of the training windows."""
    read = read_as(Settings, settings)
    check_encoded(train, "train")
    windows = TrainWindows(train, read.window)
    build_features(windows, read.routing, read.seed, output)
