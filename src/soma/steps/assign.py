"""The step `assign`: the cluster of every window of a part of the training text."""

from __future__ import annotations

from pathlib import Path

from soma.config.base import read_as
from soma.config.data import WindowSettings
from soma.data.windows import TrainWindows
from soma.files.parts import range_of
from soma.routing.features import Features
from soma.routing.router import Router, assign_part


def assign(settings: Path, train: Path, features: Path, vectors: Path, router: Path, output: Path, part: str) -> None:
    """Assign every training window of a part to a cluster."""
    # The text itself is not read: its manifest tells how many windows there are.
    windows = TrainWindows(train, read_as(WindowSettings, settings).window)
    own = range_of(part, len(windows))
    assign_part(vectors, Router.load(router, Features.load(features)), len(own), output)
