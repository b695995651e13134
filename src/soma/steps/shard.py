"""The step `shard`: the training windows of every expert."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from soma.data.windows import TrainWindows, expert_validation_mask
from soma.files.atomic import read_json
from soma.numerics.rng import Stream
from soma.routing.shards import build_shards


def shard(
    settings: Path,
    train: Path,
    partition: Literal["clusters", "random", "iid"],
    experts: int,
    output: Path,
    labels: Path | None,
) -> None:
    """Write the ids of every expert's training and expert-validation windows."""
    read = read_json(settings)
    n = len(TrainWindows(train, read["window"]))
    mask = expert_validation_mask(n, read["expert_validation"], Stream.named(read["seed"], "expert-validation"))
    label = np.load(labels, allow_pickle=False) if labels is not None else None
    build_shards(partition, experts, mask, read["seed"], output, label)
