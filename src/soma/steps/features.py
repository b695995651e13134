"""Feature steps: from training windows to features."""

from __future__ import annotations

from pathlib import Path

from soma.data.windows import TrainWindows
from soma.manifest import read_json
from soma.routing.features import Features, fit_features, transform_all
from soma.settings.routing import Routing


def fit(settings: Path, train: Path, output: Path) -> None:
    """Fit vocabulary, tf-idf weights and SVD on a sample of the training windows."""
    read = read_json(settings)
    windows = TrainWindows(train, read["window"])
    fit_features(windows, Routing.model_validate(read["routing"]), read["seed"], output)


def transform(settings: Path, train: Path, features: Path, output: Path, workers: int) -> None:
    """Compute features of every training window."""
    transform_all(TrainWindows(train, read_json(settings)["window"]), Features.load(features), output, workers)
