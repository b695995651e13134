"""The step `describe-clusters`: sizes and words of the clusters, and how well a prefix tells the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from soma.config.base import Positive, read_as
from soma.config.data import WindowSettings
from soma.data.encode import check_encoded
from soma.data.windows import TrainWindows
from soma.errors import SomaError
from soma.files.arrays import read_parts
from soma.files.atomic import write_json
from soma.routing.features import Features
from soma.routing.router import Router, agreement, describe

_AGREEMENT_WINDOWS = 10_000


class Settings(WindowSettings):
    prefix: Positive


def describe_clusters(
    settings: Path, train: Path, features: Path, router: Path, labels: Sequence[Path], output: Path
) -> None:
    """Describe the clusters of a router."""
    read = read_as(Settings, settings)
    check_encoded(train, "train")
    windows = TrainWindows(train, read.window)
    labels_N = read_parts(labels, np.uint16)
    if len(labels_N) != len(windows):
        raise SomaError(
            f"The {len(labels)} file(s) of labels hold {len(labels_N)} windows where {train} has {len(windows)}; "
            "make them again."
        )
    loaded = Router.load(router, Features.load(features))
    sizes = np.bincount(labels_N, minlength=loaded.n)
    sample = np.unique(np.linspace(0, len(windows) - 1, min(_AGREEMENT_WINDOWS, len(windows))).astype(np.int64))
    facts: dict[str, Any] = {
        "experts": loaded.n,
        "windows": len(windows),
        "clusters": [asdict(cluster) for cluster in describe(loaded, sizes)],
        "prefix": read.prefix,
        "prefix_agreement": agreement(loaded, windows.read(sample), read.prefix),
        "prefix_agreement_windows": len(sample),
    }
    write_json(output, facts)
