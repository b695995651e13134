"""Perturbation directions: Rademacher probes, packed two bits per coordinate, regenerated and never stored.

Coordinate i of a direction takes its bits from Philox block i // 64: words 0 and 2 of a block say which of its 64
coordinates are non-zero, words 1 and 3 which are negative, lowest bit first. A sparse probe keeps a weight with
probability 1/2 and always keeps a normalisation gain; a dense probe keeps everything. There is no rescaling by the
inverse probability (docs/paper.md section 4), so E[z z^T] = diag(q) with q = 1/2 or 1.

Shapes: E experts, J directions, K blocks of 64 coordinates, M coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from soma.models.spec import LSTMSpec
from soma.rng import Stream, philox4x32

ProbeKind = Literal["sparse", "dense"]


@dataclass(frozen=True)
class Probes:
    """The directions of one batch: `directions` of `update`, for each of `experts`."""

    spec: LSTMSpec
    stream: Stream
    kind: ProbeKind
    update: int
    experts: tuple[int, ...]
    directions: range

    def packed(self) -> NDArray[np.uint32]:
        """Words [E, J, K, 4]; a zero bit in words 0 and 2 means that the coordinate is not perturbed."""
        blocks = -(-self.spec.size // 64)
        expert = np.array(self.experts)[:, None, None]
        direction = np.array(self.directions)[None, :, None]
        words = philox4x32((np.arange(blocks), direction, self.update, expert), self.stream.key)
        words[..., 0::2] |= kept_bits(self.spec, self.kind)
        return words

    def signs(self) -> NDArray[np.int8]:
        """z in {-1, 0, 1}, [E, J, M]."""
        return unpack(self.packed(), self.spec.size)


def unpack(packed: NDArray[np.uint32], size: int) -> NDArray[np.int8]:
    """Packed words [..., K, 4] as z in {-1, 0, 1}, int8 [..., size]."""
    kept, negative = (_bits(packed[..., i::2])[..., :size] for i in (0, 1))
    return kept * (1 - 2 * negative)


def combine(packed: NDArray[np.uint32], coefficients: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """sum_j c_j z_j for packed [E, J, K, 4] and c [E, J]; float64 [E, size], summed in the order of j."""
    total = np.zeros((packed.shape[0], size))
    for j in range(packed.shape[1]):
        total += coefficients[:, j, None] * unpack(packed[:, j], size)
    return total


def _bits(words: NDArray[np.uint32]) -> NDArray[np.int8]:
    little = np.ascontiguousarray(words, dtype="<u4").view(np.uint8)
    return np.unpackbits(little.reshape(*words.shape[:-2], -1), axis=-1, bitorder="little").view(np.int8)


def kept_bits(spec: LSTMSpec, kind: ProbeKind) -> NDArray[np.uint32]:
    """Bits of the coordinates that no probe zeroes, [K, 2]."""
    mask = spec.gains if kind == "sparse" else np.ones(spec.size, dtype=bool)
    bits = np.zeros(-(-spec.size // 64) * 64, dtype=bool)
    bits[: spec.size] = mask
    return np.packbits(bits, bitorder="little").view("<u4").reshape(-1, 2).astype(np.uint32)
