"""The `Windows` protocol over an array, and the content of the `made` fixture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from soma.config.routing import Routing
from soma.routing.features import Features
from soma.routing.router import Router


@dataclass
class ArrayWindows:
    """The `Windows` protocol over an array in memory."""

    rows: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self.rows[ids]


def to_rows(texts: list[bytes], length: int = 512) -> NDArray[np.uint8]:
    return np.stack([np.frombuffer(t[:length].ljust(length, b" "), np.uint8) for t in texts])


@dataclass
class Made:
    """A corpus and the artefacts that routing makes from it."""

    windows: ArrayWindows
    settings: Routing
    directory: Path
    features: Features
    vectors: Path
    router: Router
