"""Counter-based randomness: every random number is a pure function of its purpose and address.

A `Stream` is named by a root seed and a purpose ("probe", "batch", "split", ...). Its numbers are addressed by a
counter (block, direction, update, expert), so chunking, the number of threads or devices, and interruptions cannot
change them, and nothing is ever stored. The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC 2011); engines in other languages reproduce the same words.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from soma.numerics import exact

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def philox4x32(counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: int) -> NDArray[np.uint32]:
    """Apply ten rounds of Philox4x32.

    Args:
        counter: four broadcastable arrays of 32-bit counter words, lowest word first.
        key: 64-bit key; its low half is the first key word.

    Returns:
        uint32 array of the broadcast shape with a last axis of 4.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, dtype=np.uint64) & _MASK for c in counter))
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & _MASK,
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & _MASK,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


@dataclass(frozen=True)
class Stream:
    """A named family of random numbers, addressed by (direction, update, expert)."""

    key: int

    @classmethod
    def named(cls, seed: int, *purpose: str) -> Stream:
        """Return the stream of `seed` for a purpose; the key is the first 8 bytes of a SHA-256 of both."""
        text = "/".join([str(seed), *purpose])
        return cls(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))

    def words(
        self, n: int, *, direction: ArrayLike = 0, update: ArrayLike = 0, expert: ArrayLike = 0
    ) -> NDArray[np.uint32]:
        """Draw n 32-bit words for every address; shape: broadcast(direction, update, expert) + (n,)."""
        d, u, e = (np.asarray(a)[..., None] for a in (direction, update, expert))
        out = philox4x32((np.arange(-(-n // 4)), d, u, e), self.key)
        return out.reshape(*out.shape[:-2], -1)[..., :n]

    def uniform(self, n: int, **address: ArrayLike) -> NDArray[np.float64]:
        """Draw n float64 numbers in [0, 1) with 53 random bits each."""
        w = self.words(2 * n, **address).astype(np.uint64)
        return ((w[..., 0::2] << np.uint64(21)) | (w[..., 1::2] >> np.uint64(11))) * 2.0**-53

    def integers(self, n: int, high: int, **address: ArrayLike) -> NDArray[np.int64]:
        """Draw n integers in [0, high); deriving them from 53 bits biases them by less than high / 2**53."""
        return (self.uniform(n, **address) * high).astype(np.int64)

    def normal(self, n: int, **address: ArrayLike) -> NDArray[np.float64]:
        """Draw n standard normal float64 numbers (Box-Muller)."""
        u = self.uniform(2 * n, **address)
        return np.sqrt(-2.0 * exact.log(1.0 - u[..., 0::2])) * exact.cos_turns(u[..., 1::2])

    def permutation(self, n: int, **address: ArrayLike) -> NDArray[np.int64]:
        """Draw a random permutation of range(n)."""
        return np.argsort(self.uniform(n, **address), kind="stable")

    def seed32(self) -> int:
        """Draw a 32-bit seed for a library with its own generator (scikit-learn's `random_state`)."""
        return int(self.words(1)[0])
