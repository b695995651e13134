"""The step `shard`: the training windows of every expert."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from soma.config.base import read_as
from soma.config.data import WindowSettings
from soma.data.encode import check_encoded
from soma.data.shards import build_shards
from soma.data.windows import TrainWindows, expert_validation_mask
from soma.files.arrays import read_parts
from soma.numerics.rng import Stream


class Settings(WindowSettings):
    expert_validation: Annotated[float, Field(gt=0, lt=1)]


def shard(
    settings: Path,
    train: Path,
    partition: Literal["clusters", "random", "iid"],
    experts: int,
    output: Path,
    labels: Sequence[Path],
) -> None:
    """Write every expert's training and expert-validation windows, and their ids."""
    read = read_as(Settings, settings)
    check_encoded(train, "train")
    corpus = TrainWindows(train, read.window)
    mask = expert_validation_mask(len(corpus), read.expert_validation, Stream.named(read.seed, "expert-validation"))
    labels_N = read_parts(labels, np.uint16) if labels else None
    build_shards(partition, experts, corpus, mask, read.seed, output, labels_N)
