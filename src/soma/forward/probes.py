"""Perturbation directions, regenerated from counters and never stored: packed Rademacher and Gaussian probes.

Rademacher probes take two bits per coordinate. Coordinate i of a direction uses Philox block i // 64: words 0 and 2 of
a block mark which of its 64 coordinates are non-zero, words 1 and 3 which are negative, lowest bit first. A sparse
probe keeps a weight with probability 1/2 and always keeps a normalisation gain; a dense probe keeps everything. There
is no rescaling by the inverse probability (docs/paper.md section 4), so E[z z^T] = diag(q) with q = 1/2 or 1.

A Gaussian probe is standard normal in every coordinate (q = 1): one Philox block and one Box-Muller pair each, rounded
to float32 here and nowhere else, so that every engine perturbs by the same numbers and sums the same bits. (Numpy's
logarithm and cosine may differ between processors in the last bit of float64; float32 hides that but for 1e-8 or so.)

Shapes: E experts, J directions, K blocks of 64 coordinates, M coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream, philox4x32

ProbeKind = Literal["sparse", "dense", "gaussian"]


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
        """Return the words [E, J, K, 4] of Rademacher probes; a zero bit in words 0 and 2 leaves its coordinate
        unperturbed.
        """
        kept = kept_bits(self.spec, self.kind)
        blocks = -(-self.spec.size // 64)
        expert = np.array(self.experts)[:, None, None]
        direction = np.array(self.directions)[None, :, None]
        words = philox4x32((np.arange(blocks), direction, self.update, expert), self.stream.key)
        words[..., 0::2] |= kept
        return words

    def signs(self) -> NDArray[np.int8]:
        """Return z in {-1, 0, 1} of Rademacher probes, [E, J, M]."""
        return unpack(self.packed(), self.spec.size)

    def normals(self) -> NDArray[np.float32]:
        """Return z of Gaussian probes, [E, J, M]."""
        out = np.empty((len(self.experts), len(self.directions), self.spec.size), dtype=np.float32)
        for e, expert in enumerate(self.experts):
            for j, direction in enumerate(self.directions):
                out[e, j] = self.stream.normal(self.spec.size, direction=direction, update=self.update, expert=expert)
        return out

    def vectors(self) -> NDArray[np.int8] | NDArray[np.float32]:
        """Return z of any kind, [E, J, M]."""
        return self.normals() if self.kind == "gaussian" else self.signs()

    def part(self, experts: slice, directions: slice) -> Probes:
        """Restrict to slices of experts and directions."""
        return replace(self, experts=self.experts[experts], directions=self.directions[directions])

    def combine(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute sum_j c_j z_j for c [E, J], in the order of j; float64 [E, M]."""
        if self.kind != "gaussian":
            return combine(self.packed(), coefficients, self.spec.size)
        total = np.zeros((len(self.experts), self.spec.size))
        for j in range(len(self.directions)):  # one direction in memory at a time
            total += coefficients[:, j, None] * self.part(slice(None), slice(j, j + 1)).normals()[:, 0]
        return total


def unpack(packed: NDArray[np.uint32], size: int) -> NDArray[np.int8]:
    """Unpack words [..., K, 4] to z in {-1, 0, 1}, int8 [..., size]."""
    kept, negative = (_bits(packed[..., i::2])[..., :size] for i in (0, 1))
    return kept * (1 - 2 * negative)


def combine(packed: NDArray[np.uint32], coefficients: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Compute sum_j c_j z_j for packed [E, J, K, 4] and c [E, J], in the order of j; float64 [E, size]."""
    total = np.zeros((packed.shape[0], size))
    for j in range(packed.shape[1]):
        total += coefficients[:, j, None] * unpack(packed[:, j], size)
    return total


def _bits(words: NDArray[np.uint32]) -> NDArray[np.int8]:
    little = np.ascontiguousarray(words, dtype="<u4").view(np.uint8)
    return np.unpackbits(little.reshape(*words.shape[:-2], -1), axis=-1, bitorder="little").view(np.int8)


@cache
def kept_bits(spec: LSTMSpec, kind: ProbeKind) -> NDArray[np.uint32]:
    """Return the bits of the coordinates that no Rademacher probe zeroes, [K, 2], read-only."""
    if kind == "gaussian":
        raise ValueError("a gaussian probe has no bits; use its normals")
    mask = spec.gains if kind == "sparse" else np.ones(spec.size, dtype=bool)
    bits = np.zeros(-(-spec.size // 64) * 64, dtype=bool)
    bits[: spec.size] = mask
    words = np.packbits(bits, bitorder="little").view("<u4").reshape(-1, 2).astype(np.uint32)
    words.setflags(write=False)
    return words
