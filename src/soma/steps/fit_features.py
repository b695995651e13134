"""The step `fit-features`: tf-idf weights and SVD of a sample of the training windows."""

from __future__ import annotations

from pathlib import Path

from soma.config.routing import Routing
from soma.data.windows import TrainWindows
from soma.files.atomic import read_json
from soma.routing.features import build_features


def fit_features(settings: Path, train: Path, output: Path) -> None:
    """Fit vocabulary, tf-idf weights and SVD on a sample of the training windows."""
    read = read_json(settings)
    windows = TrainWindows(train, read["window"])
    build_features(windows, Routing.model_validate(read["routing"]), read["seed"], output)
