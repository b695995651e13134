"""The step `fit-router`: balanced clusters of the training windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from soma.config.base import Model, Seed, read_as
from soma.config.routing import Routing
from soma.files.arrays import open_array
from soma.routing.features import Features, sample_ids
from soma.routing.router import build_router


class Settings(Model):
    seed: Seed
    routing: Routing


def fit_router(settings: Path, features: Path, vectors: list[Path], experts: int, output: Path) -> None:
    """Fit balanced centroids of N clusters."""
    read = read_as(Settings, settings)
    loaded = Features.load(features)
    windows = sum(len(open_array(part, np.float32, 2)) for part in vectors)
    ids = sample_ids(windows, read.routing, read.seed)
    build_router(vectors, ids, loaded, experts, read.routing, read.seed, output)
