"""Sizes of the gated recurrent model of the EGGROLL baseline and the layout of its parameter vector, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from soma.models.spec import VOCABULARY, Slot, lay_out


@dataclass(frozen=True)
class GRUSpec:
    """Sizes of the model; it has M = depth (12 d^2 + 4 d) + 2 V d + d parameters, with untied embedding and head."""

    width: int
    depth: int = 6

    @cached_property
    def layout(self) -> tuple[Slot, ...]:
        """Every tensor in the order of the flat vector; matrices [out, in], embedding and head [V, D]."""
        d = self.width
        shapes: list[tuple[str, tuple[int, ...]]] = [("embedding", (VOCABULARY, d))]
        for i in range(self.depth):
            shapes += [
                (f"blocks.{i}.cell_norm", (d,)),
                (f"blocks.{i}.gate_input", (d, d)),
                (f"blocks.{i}.gate_hidden", (d, d)),
                (f"blocks.{i}.gate_bias", (d,)),
                (f"blocks.{i}.candidate_input", (d, d)),
                (f"blocks.{i}.candidate_hidden", (d, d)),
                (f"blocks.{i}.candidate_bias", (d,)),
                (f"blocks.{i}.mlp_norm", (d,)),
                (f"blocks.{i}.mlp_up", (4 * d, d)),
                (f"blocks.{i}.mlp_down", (d, 4 * d)),
            ]
        shapes += [("norm", (d,)), ("head", (VOCABULARY, d))]
        return lay_out(shapes)

    @property
    def size(self) -> int:
        """Number of all parameters (M)."""
        return self.layout[-1].offset + self.layout[-1].size


def operations_per_token(spec: GRUSpec) -> int:
    """Count the operations of one forward per byte: 2 (12 depth d^2 + V d); a multiply-add is two.

    As for the LSTM, only matrix products count: norms, gates, biases, the embedding look-up and the softmax are left
    out.
    """
    return 2 * (12 * spec.depth * spec.width**2 + VOCABULARY * spec.width)


def rank_one_operations_per_token(spec: GRUSpec) -> int:
    """Count the operations per byte that the perturbations add to a member's forward: a (b.x) for every product, a_t b.

    This is 4 (out + in) for every matrix that multiplies and 2 d for the embedding's row; vectors are perturbed once
    per chunk.
    """
    products = [s.shape for s in spec.layout if len(s.shape) == 2 and s.name != "embedding"]
    return sum(4 * (out + into) for out, into in products) + 2 * spec.width
