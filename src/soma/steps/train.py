"""The step `train`: check the data, then train one group of experts of a run.

A flipped bit in the text would go unnoticed, so every job first reads the windows of its experts once and compares
hashes: about a second per GB, against hours of training. Workers of one job do not repeat it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from soma.config.base import read_as
from soma.forward import distributed
from soma.runs import RunSpec
from soma.training.job import Files, check, train_part


def train(settings: Path, part: str, train: Path, shards: Path, **others: Any) -> None:
    """Check the text of a part against the recorded hashes, then train it (`training.job.train_part`).

    Raises:
        SomaError: if a file does not match, naming it.
    """
    if distributed.workers() == 1:  # with several workers, the process that became torchrun has checked
        check(read_as(RunSpec, settings), part, Files(train, shards))
    train_part(settings=settings, part=part, train=train, shards=shards, **others)
