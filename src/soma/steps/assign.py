"""The step `assign`: the cluster of every training window."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from soma.config.base import Positive, read_as
from soma.config.data import WindowSettings
from soma.data.encode import check_encoded
from soma.data.windows import TrainWindows
from soma.errors import SomaError
from soma.files.atomic import write_json
from soma.routing.features import Features
from soma.routing.router import Router, agreement, assign_all, describe

_AGREEMENT_WINDOWS = 10_000


class Settings(WindowSettings):
    prefix: Positive


def assign(
    settings: Path, train: Path, features: Path, vectors: list[Path], router: Path, labels: Path, clusters: Path
) -> None:
    """Assign every training window to a cluster, and describe the clusters."""
    read = read_as(Settings, settings)
    check_encoded(train, "train")
    loaded = Router.load(router, Features.load(features))
    sizes = assign_all(vectors, loaded, labels)
    windows = TrainWindows(train, read.window)
    if sizes.sum() != len(windows):
        raise SomaError(
            f"The {len(vectors)} file(s) of features hold {sizes.sum()} windows where {train} has {len(windows)}; "
            "make them again."
        )
    sample = np.unique(np.linspace(0, len(windows) - 1, min(_AGREEMENT_WINDOWS, len(windows))).astype(np.int64))
    facts: dict[str, Any] = {
        "experts": loaded.n,
        "windows": len(windows),
        "clusters": [asdict(cluster) for cluster in describe(loaded, sizes)],
        "prefix": read.prefix,
        "prefix_agreement": agreement(loaded, windows.read(sample), read.prefix),
        "prefix_agreement_windows": len(sample),
    }
    write_json(clusters, facts)
