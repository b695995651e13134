"""Training text as windows of W bytes, some of which are held out for expert validation.

Shapes: n windows read at once, W bytes in a window, T bytes predicted per crop.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from soma.data.encode import read_encoded
from soma.errors import SomaError
from soma.numerics.rng import Stream

_IDS = 1 << 20


class Rows:
    """Windows in one array, each beginning `stride` bytes after the one before; the byte after each exists.

    Attributes:
        window: W.
    """

    def __init__(self, flat: NDArray[np.uint8], window: int, stride: int) -> None:
        self.window, self._flat, self._stride = window, flat, stride
        self._n = (len(flat) - 1 - window) // stride + 1

    def __len__(self) -> int:
        """Return the number of windows."""
        return self._n

    def crops(self, ids: ArrayLike, offsets: ArrayLike, length: int) -> NDArray[np.uint8]:
        """Read `length` bytes of each window and the byte after them; uint8 of shape (n, length + 1).

        Columns [:-1] are inputs, columns [1:] their targets.

        Args:
            ids: n window ids.
            offsets: n positions inside the window; offset + length <= W, so that inputs stay in the window (the last
                target may be the byte after it).
            length: T.

        Raises:
            IndexError: an id is not in [0, len).
            ValueError: a crop leaves its window.
        """
        at = np.asarray(offsets, dtype=np.int64)
        if at.size and (at.min() < 0 or at.max() + length > self.window):
            raise ValueError(f"a crop of {length} bytes does not fit at its offset into a window of {self.window}")
        starts = self._checked(ids) * self._stride + at
        return np.asarray(np.lib.stride_tricks.sliding_window_view(self._flat, length + 1)[starts])

    def _checked(self, ids: ArrayLike) -> NDArray[np.int64]:
        out = np.asarray(ids, dtype=np.int64)
        if out.size and (out.min() < 0 or out.max() >= len(self)):
            raise IndexError(f"window ids must be in [0, {len(self)})")
        return out


class TrainWindows(Rows):
    """The windows of an encoded training corpus, memory-mapped.

    Window i is bytes [i W, (i+1) W). The byte after a window always exists, so that every byte of a window has a
    target; a remainder too short for that is not used.

    Attributes:
        sha256: of the byte file, as recorded in its manifest.
    """

    def __init__(self, directory: Path, window: int) -> None:
        manifest = read_encoded(directory, "train")
        size = manifest["files"]["bytes.bin"]["bytes"]
        if size < window + 1:
            raise SomaError(
                f"{directory} has {size} bytes of training text, too few for one window of {window} bytes and its "
                "last target; lower `data.window` or name a larger source."
            )
        self.sha256: str = manifest["files"]["bytes.bin"]["sha256"]
        super().__init__(np.memmap(directory / "bytes.bin", np.uint8, "r", shape=(size,)), window, window)
        self._windows = self._flat[: len(self) * window].reshape(len(self), window)

    @property
    def text(self) -> NDArray[np.uint8]:
        """All bytes, read-only, for methods that read the text as a stream."""
        return self._flat

    def read(self, ids: ArrayLike) -> NDArray[np.uint8]:
        """Read whole windows into a new array; uint8 of shape (n, W).

        Raises:
            IndexError: an id is not in [0, len).
        """
        return np.asarray(self._windows[self._checked(ids)])


def random_crops(
    windows: Rows, ids: NDArray[np.unsignedinteger], draws: NDArray[np.float64], window: int, length: int
) -> NDArray[np.uint8]:
    """Read random crops of random windows, drawn with replacement; uint8 of shape (n, length + 1).

    Args:
        ids: the windows to draw from.
        draws: uniform numbers, two for each crop: one for its window, one for its offset.
        window: W.
    """
    offsets = (draws[1::2] * (window - length + 1)).astype(np.int64)
    return windows.crops(ids[(draws[0::2] * len(ids)).astype(np.int64)], offsets, length)


def expert_validation_mask(n: int, share: float, stream: Stream) -> NDArray[np.bool_]:
    """Return which of n windows are held out for the expert-validation loss; bool of shape (n,).

    Each window is drawn with probability `share`, by a number that depends only on the stream and the window's id, so
    the set exists before any routing and is the same for any number of experts. The stream is
    `Stream.named(seed, "expert-validation")`.
    """
    mask = np.empty(n, dtype=np.bool_)
    for start in range(0, n, _IDS):
        ids = np.arange(start, min(start + _IDS, n))
        mask[ids] = stream.uniform(1, direction=ids)[:, 0] < share
    return mask
