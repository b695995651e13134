"""The step `train`: check the data, then train one group of experts of a run.

A training job itself checks only sizes, so a flipped bit would go unnoticed. Every job therefore first reads its data
once and compares hashes: about a second per GB of text, against hours of training. Workers of one job do not repeat it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from soma.data.encode import read_encoded
from soma.files.hashes import check_files
from soma.forward import distributed
from soma.routing.shards import Shards
from soma.training.job import train_part


def train(train: Path, shards: Path, **others: Any) -> None:
    """Check the text and the window ids against their manifests, then train (`training.job.train_part`).

    Raises:
        SomaError: if a file does not match, naming it.
    """
    if distributed.workers() == 1:  # with several workers, the process that became torchrun has checked
        check_text(train)
        Shards.open(shards).verify()
    train_part(train=train, shards=shards, **others)


def check_text(train: Path) -> None:
    """Raise `SomaError` unless the training text matches the hash in its manifest."""
    check_files(train, {"bytes.bin": read_encoded(train, "train")["files"]["bytes.bin"]})
