"""Rank-one perturbations of a whole model, regenerated from their address and never stored as weights.

Pair p perturbs a matrix by +-sigma a b^T and a vector by +-sigma u v (elementwise), so that an entry of either is the
product of two Gaussians. Both factors of all tensors form one vector of K = sum (shape[0] + shape[-1]) numbers: number
i of pair p at an update comes from Philox block i // 4 of address (direction = p, update).

Factors are Gaussians rounded to multiples of 2^-12. An entry of a b^T is then a multiple of 2^-24 below 2^6, and a sum
of up to 2^22 of them is *exact* in float64. An update therefore uses the same bits for every chunk size, order of
summation, number of workers and device.

Shapes: P pairs (of one chunk), G = 2 signs (+ first), T time steps, K factors, M parameters, m x n a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import pi

import torch
from torch import Tensor

from soma.models.gru_spec import GRUSpec
from soma.models.spec import Slot
from soma.numerics.rng import Stream

GRID = 2.0**-12
MAX_PAIRS = 1 << 22
"""With more pairs a sum of entries might not be exact."""
_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Noise:
    """The perturbations of a model, addressed by pair and update."""

    spec: GRUSpec
    stream: Stream

    @cached_property
    def places(self) -> dict[str, tuple[slice, slice]]:
        """Positions of the left factor (a or u) and the right factor (b or v) of each tensor among the K."""
        out, at = {}, 0
        for slot in self.spec.layout:
            left, right = slot.shape[0], slot.shape[-1]
            out[slot.name] = slice(at, at + left), slice(at + left, at + left + right)
            at += left + right
        return out

    @property
    def size(self) -> int:
        """Numbers of one pair (K)."""
        return sum(slot.shape[0] + slot.shape[-1] for slot in self.spec.layout)

    def factors(self, pairs: range, update: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw the factors of these pairs; float64 [P, K], multiples of 2^-12."""
        blocks = torch.arange(-(-self.size // 4), device=device)
        direction = torch.arange(pairs.start, pairs.stop, device=device)[:, None]
        words = _philox(blocks, direction, update, self.stream.key)
        normal = torch.empty(len(pairs), len(blocks), 4, dtype=torch.float64, device=device)
        for i in (0, 2):  # Box-Muller: two words, two numbers
            radius = torch.log((words[i] + 1).double() * 2.0**-32).mul_(-2).sqrt_()
            angle = words[i + 1].double() * (2 * pi * 2.0**-32)
            normal[..., i] = radius * torch.cos(angle)
            normal[..., i + 1] = radius * torch.sin(angle)
        return (normal.flatten(1)[:, : self.size] * (1 / GRID)).round_() * GRID

    def direction(self, pair: int, update: int) -> Tensor:
        """Return the whole perturbation of one pair as a vector; float64 [M] (tests and diagnosis only)."""
        return self.combine(self.factors(range(pair, pair + 1), update), torch.ones(1, dtype=torch.float64))

    def combine(self, factors: Tensor, coefficients: Tensor) -> Tensor:
        """Compute sum_p c_p E_p for factors [P, K] and c [P]; float64 [M], exact if c is -1, 0 or 1."""
        total = torch.empty(self.spec.size, dtype=torch.float64, device=factors.device)
        for slot in self.spec.layout:
            left, right = (factors[:, place] for place in self.places[slot.name])
            weighted = left * coefficients[:, None]
            out = total[slot.offset : slot.offset + slot.size]
            if len(slot.shape) == 2:
                torch.mm(weighted.T, right, out=out.view(slot.shape))
            else:
                torch.sum(weighted * right, dim=0, out=out)
        return total


class Members:
    """Parameters (`models.gru.Parameters`) of P antithetic pairs: shared weights plus rank-one terms.

    A product is one matrix product for all members, plus a (b . x) with either sign.
    """

    def __init__(self, noise: Noise, theta: Tensor, factors: Tensor, sigma: float) -> None:
        """Combine shared weights with the perturbations of P pairs.

        Args:
            theta: [M]; its dtype is that of the arithmetic.
            factors: [P, K].
        """
        self._slots: dict[str, Slot] = {slot.name: slot for slot in noise.spec.layout}
        self._places = noise.places
        self._theta, self._sigma = theta, sigma
        self._factors = factors.to(theta.dtype)
        self._signs = torch.tensor([sigma, -sigma], dtype=theta.dtype, device=theta.device)
        self._scaled: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def rows(self, name: str, index: Tensor) -> Tensor:
        a, b = self._pair(name)
        shared = self._weight(name)[index.long()][:, None]
        return shared + self._signs[:, None, None] * (a.gather(1, index.long())[:, None, :, None] * b[:, None, None])

    def product(self, name: str, x: Tensor) -> Tensor:
        weight, left, right = self._scaled.get(name) or self._scale(name)
        y = x @ weight
        dots = torch.bmm(x.flatten(1, 2), right[:, 0, :, None])
        dots.unflatten(1, x.shape[1:3])[:, 1].neg_()
        y.flatten(1, 2).baddbmm_(dots, left)
        return y

    def step(self, name: str, x: Tensor) -> Tensor:
        weight, left, right = self._scaled.get(name) or self._scale(name)
        return (x @ weight).addcmul_((x * right).sum(dim=2, keepdim=True), left)

    def vector(self, name: str) -> Tensor:
        u, v = self._pair(name)
        return self._weight(name) + self._signs[:, None, None] * (u * v)[:, None, None]

    def _scale(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        a, b = self._pair(name)
        weight = self._weight(name)
        scale = weight.shape[1] ** -0.5
        out = weight.T * scale, a[:, None].contiguous(), (self._signs * scale)[:, None] * b[:, None]
        self._scaled[name] = out
        return out

    def _weight(self, name: str) -> Tensor:
        slot = self._slots[name]
        return self._theta[slot.offset : slot.offset + slot.size].view(slot.shape)

    def _pair(self, name: str) -> tuple[Tensor, Tensor]:
        left, right = self._places[name]
        return self._factors[:, left], self._factors[:, right]


def _philox(block: Tensor, direction: Tensor, update: int, key: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute `soma.numerics.rng.philox4x32` of counter (block, direction, update, 0) on any device; four int64 word
    tensors.

    int64 products wrap, but all their 64 bits are correct; only the shift of the high half needs a mask.
    """
    c0, c1 = torch.broadcast_tensors(block & _MASK, direction & _MASK)
    c2, c3 = torch.full_like(c0, update & _MASK), torch.zeros_like(c0)
    k0, k1 = key & _MASK, key >> 32
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3
