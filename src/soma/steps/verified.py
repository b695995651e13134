"""Training on data that is what was recorded.

The training step looks at sizes only. A flipped bit would train without a word, so every job first reads its data once
and compares hashes: about a second for each GB of text, beside hours of training. Workers of one job do not repeat it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from soma.data.encode import read_encoded
from soma.forward import distributed
from soma.manifest import check_files
from soma.routing.shards import Shards
from soma.steps import train as step


def train_part(train: Path, shards: Path, **others: Any) -> None:
    """`train.train_part`, unless the text or the window ids are not what their manifests say.

    Raises:
        SomaError: naming the file that is not.
    """
    if distributed.workers() == 1:  # of several, the process that became torchrun was here
        check_text(train)
        Shards.open(shards).verify()
    step.train_part(train=train, shards=shards, **others)


def check_text(train: Path) -> None:
    """Raise a `SomaError` unless the training text has the hash that its manifest records."""
    check_files(train, {"bytes.bin": read_encoded(train, "train")["files"]["bytes.bin"]})
