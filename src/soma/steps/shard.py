"""The step `shard`: the training windows of every expert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from soma.config.base import read_as
from soma.config.data import WindowSettings
from soma.data.windows import TrainWindows, expert_validation_mask
from soma.files.arrays import open_array
from soma.numerics.rng import Stream
from soma.routing.shards import build_shards


class Settings(WindowSettings):
    expert_validation: Annotated[float, Field(gt=0, lt=1)]


def shard(
    settings: Path,
    train: Path,
    partition: Literal["clusters", "random", "iid"],
    experts: int,
    output: Path,
    labels: Path | None,
) -> None:
    """Write the ids of every expert's training and expert-validation windows."""
    read = read_as(Settings, settings)
    n = len(TrainWindows(train, read.window))
    mask = expert_validation_mask(n, read.expert_validation, Stream.named(read.seed, "expert-validation"))
    label = None if labels is None else open_array(labels, np.uint16, 1)
    build_shards(partition, experts, mask, read.seed, output, label)
