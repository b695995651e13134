"""The step `fit-router`: balanced clusters of the training windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from soma.config.routing import Routing
from soma.files.atomic import read_json
from soma.routing.features import Features, sample_ids
from soma.routing.router import build_router


def fit_router(settings: Path, features: Path, vectors: Path, experts: int, output: Path) -> None:
    """Fit balanced centroids of N clusters."""
    read = read_json(settings)
    routing = Routing.model_validate(read["routing"])
    loaded = Features.load(features)
    ids = sample_ids(len(np.load(vectors, mmap_mode="r", allow_pickle=False)), routing, read["seed"])
    build_router(vectors, ids, loaded, experts, routing, read["seed"], output)
