"""Sizes of an LSTM expert and the layout of its parameter vector (docs/paper.md section 3), without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 256


@dataclass(frozen=True)
class Slot:
    """Position of a named tensor in the flat parameter vector."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def is_gain(self) -> bool:
        return len(self.shape) == 1


def lay_out(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[Slot, ...]:
    """Lay out named tensors one after the other in a flat vector."""
    slots, offset = [], 0
    for name, shape in shapes:
        slots.append(Slot(name, shape, offset))
        offset += prod(shape)
    return tuple(slots)


@dataclass(frozen=True)
class LSTMSpec:
    """Sizes of an expert; its body has M = 16 depth d^2 + (2 depth + 1) d [+ 2 d_E d] parameters."""

    width: int
    depth: int = 2
    embedding: int = 32

    @property
    def projected(self) -> bool:
        """True if bias-free projections stand between the embedding and the body (d != d_E)."""
        return self.width != self.embedding

    @cached_property
    def layout(self) -> tuple[Slot, ...]:
        """Every tensor of the body in the order of the flat vector; matrices [out, in], gates in order i, f, g, o."""
        d = self.width
        shapes: list[tuple[str, tuple[int, ...]]] = []
        if self.projected:
            shapes.append(("project_in", (d, self.embedding)))
        for i in range(self.depth):
            shapes += [
                (f"blocks.{i}.lstm_norm", (d,)),
                (f"blocks.{i}.lstm_input", (4 * d, d)),
                (f"blocks.{i}.lstm_hidden", (4 * d, d)),
                (f"blocks.{i}.mlp_norm", (d,)),
                (f"blocks.{i}.mlp_up", (4 * d, d)),
                (f"blocks.{i}.mlp_down", (d, 4 * d)),
            ]
        shapes.append(("norm", (d,)))
        if self.projected:
            shapes.append(("project_out", (self.embedding, d)))
        return lay_out(shapes)

    @cached_property
    def size(self) -> int:
        """Parameters of one body (M); the head has `head_size` more."""
        return self.layout[-1].offset + self.layout[-1].size

    @property
    def head_size(self) -> int:
        return VOCABULARY * self.embedding

    @cached_property
    def gains(self) -> NDArray[np.bool_]:
        """Mask of the body's normalisation gains, [M]."""
        mask = np.zeros(self.size, dtype=bool)
        for slot in self.layout:
            mask[slot.offset : slot.offset + slot.size] = slot.is_gain
        return mask
