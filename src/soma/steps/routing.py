"""Steps from training windows to shards."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from soma.data.windows import TrainWindows, expert_validation_mask
from soma.manifest import read_json, write_json
from soma.rng import Stream
from soma.routing.features import Features, fit_features, sample_ids, transform_all
from soma.routing.router import Router, agreement, assign_all, describe, fit_router
from soma.routing.shards import build_shards
from soma.settings.routing import Routing

_AGREEMENT_WINDOWS = 10_000


def fit(settings: Path, train: Path, output: Path) -> None:
    """Vocabulary, tf-idf weights and SVD, fitted on a sample of the training windows."""
    read = read_json(settings)
    windows = TrainWindows(train, read["window"])
    fit_features(windows, Routing.model_validate(read["routing"]), read["seed"], output)


def transform(settings: Path, train: Path, features: Path, output: Path, workers: int) -> None:
    """Features of every training window."""
    transform_all(TrainWindows(train, read_json(settings)["window"]), Features.load(features), output, workers)


def router(settings: Path, features: Path, vectors: Path, experts: int, output: Path) -> None:
    """Balanced centroids of N clusters."""
    read = read_json(settings)
    routing = Routing.model_validate(read["routing"])
    loaded = Features.load(features)
    ids = sample_ids(len(np.load(vectors, mmap_mode="r", allow_pickle=False)), routing, read["seed"])
    fit_router(vectors, ids, loaded, experts, routing, read["seed"], output)


def assign(
    settings: Path, train: Path, features: Path, vectors: Path, router: Path, labels: Path, clusters: Path
) -> None:
    """The cluster of every training window, and a description of the clusters."""
    read = read_json(settings)
    loaded = Router.load(router, Features.load(features))
    sizes = assign_all(vectors, loaded, labels)
    windows = TrainWindows(train, read["window"])
    sample = np.unique(np.linspace(0, len(windows) - 1, min(_AGREEMENT_WINDOWS, len(windows))).astype(np.int64))
    facts: dict[str, Any] = {
        "experts": loaded.n,
        "windows": len(windows),
        "clusters": [asdict(cluster) for cluster in describe(loaded, sizes)],
        "prefix": read["prefix"],
        "prefix_agreement": agreement(loaded, windows.read(sample), read["prefix"]),
        "prefix_agreement_windows": len(sample),
    }
    write_json(clusters, facts)


def shard(
    settings: Path,
    train: Path,
    partition: Literal["clusters", "random", "iid"],
    experts: int,
    output: Path,
    labels: Path | None,
) -> None:
    """Training and expert-validation window ids of every expert."""
    read = read_json(settings)
    n = len(TrainWindows(train, read["window"]))
    mask = expert_validation_mask(n, read["expert_validation"], Stream.named(read["seed"], "expert-validation"))
    label = np.load(labels, allow_pickle=False) if labels is not None else None
    build_shards(partition, experts, mask, read["seed"], output, label)
