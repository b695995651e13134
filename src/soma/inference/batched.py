"""Runner for any torch device: experts side by side in one batch, with groups padded to a common size.

A GPU launches the same few kernels for one expert or for a hundred, so experts with groups of similar size run
together. Nothing here needs a compiler; `triton_runner` replaces the products by kernels. Shapes as in
`soma.inference.runner`; E experts of a batch, B sequences of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.inference.runner import Runner
from soma.models import lstm
from soma.models.experts import Experts
from soma.models.lstm import State
from soma.models.spec import VOCABULARY

_TIME = 64  # positions whose activations are held in memory at once
_BUDGET = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Activations, in floats, held in memory at once."""

Batch = tuple[list[int], NDArray[np.int64]]
"""Experts [E] and their pairs [E, B], padded by repeating an expert's last pair."""


class BatchedRunner(Runner):
    """A runner with batched matrix products over experts."""

    name = "torch"
    _tile = 1
    """Number of sequences of an expert that cost no more than one."""
    _cut: int | None = None
    """Size to which groups are cut, if an expert can appear twice in a batch at no cost."""

    def __init__(self, experts: Experts, device: torch.device) -> None:
        placed = experts.to(torch.float32).to(device)
        self.spec, self.device = experts.spec, device
        # Loose tensors because subclasses hold them in another layout.
        self._bodies, self._heads = placed.theta.detach(), placed.distinct_heads.detach()

    @torch.inference_mode()
    def losses(
        self, expert: NDArray[np.integer], sequence: NDArray[np.integer], tokens: NDArray[np.uint8], scored: int
    ) -> NDArray[np.float64]:
        out = torch.empty(len(expert), scored, device=self.device)
        read = torch.tensor(tokens, device=self.device)  # copied because the argument may be read-only
        rows = torch.from_numpy(np.asarray(sequence, np.int64)).to(self.device)
        time = tokens.shape[1] - 1
        for experts, pairs in self._batches(expert, time):
            places = torch.from_numpy(pairs).to(self.device)
            start = 0
            for nats in self._nats(*self._weights(experts), read[rows[places]], time - scored):
                out[places, start : start + nats.shape[2]] = nats
                start += nats.shape[2]
        return out.double().cpu().numpy()

    def _nats(self, theta: Tensor, head: Tensor, text: Tensor, skip: int) -> Iterator[Tensor]:
        """Yield nats [E, B, t] of successive bytes of a batch's text [E, B, T + 1], starting at byte `skip` + 1."""
        time = text.shape[2] - 1
        state: State | None = None
        for first in range(0, time, _TIME):
            last = min(first + _TIME, time)
            hidden, state = lstm.hidden(Experts(self.spec, theta, head), text[:, :, first:last], state)
            scored = max(first, skip)
            if scored < last:
                yield lstm.cross_entropy(hidden[:, :, scored - first :], head, text[:, :, scored + 1 : last + 1])

    def start(self, pairs: int) -> Any:
        """Return zero hidden and cell states [P, 1, D] of every block."""
        zero = torch.zeros(pairs, 1, self.spec.width, device=self.device)
        return [(zero, zero) for _ in range(self.spec.depth)]

    @torch.inference_mode()
    def advance(self, expert: NDArray[np.integer], tokens: NDArray[np.uint8], state: Any) -> NDArray[np.float64]:
        theta, head = self._weights([int(e) for e in expert])
        hidden = self._read(theta, head, torch.tensor(tokens, device=self.device)[:, None], state)
        logits = torch.einsum("ph,pvh->pv", hidden, head[..., : self.spec.embedding])
        return torch.softmax(logits.double(), dim=1).cpu().numpy()

    def _read(self, theta: Tensor, head: Tensor, text: Tensor, state: Any) -> Tensor:
        """Return the head's input [P, H] after all bytes [P, 1, T]; updates the state in place."""
        hidden, state[:] = lstm.hidden(Experts(self.spec, theta, head), text, state)
        return hidden[:, 0, -1]

    def _weights(self, experts: list[int]) -> tuple[Tensor, Tensor]:
        """Return bodies [E, M] and heads [E, V, H], as views of one head if it is shared."""
        which = torch.tensor(experts, device=self.device)
        heads = self._heads.expand(len(experts), -1, -1) if len(self._heads) == 1 else self._heads[which]
        return self._bodies[which], heads

    def _batches(self, expert: NDArray[np.integer], time: int) -> Iterator[Batch]:
        """Batch groups of similar size, so that at most half of a batch is padding beyond the tile."""
        per_sequence = min(_TIME, time) * (10 * self.spec.width + VOCABULARY)
        room = max(1, _BUDGET[self.device.type] // per_sequence)  # sequences at once
        largest = min(room, self._cut or room)
        # The pairs of an expert are adjacent.
        edges = np.flatnonzero(np.diff(expert, prepend=-1))
        groups = [
            (int(expert[a]), np.arange(first, min(first + largest, b)))
            for a, b in zip(edges, np.append(edges[1:], len(expert)), strict=True)
            for first in range(a, b, largest)
        ]
        groups.sort(key=lambda group: -len(group[1]))
        while groups:
            most = len(groups[0][1])
            fit = max(1, room // max(most, self._tile))
            count = 1
            while count < min(len(groups), fit) and 2 * max(len(groups[count][1]), self._tile) >= most:
                count += 1
            batch, groups = groups[:count], groups[count:]
            pairs = np.stack([np.pad(places, (0, most - len(places)), mode="edge") for _, places in batch])
            yield [e for e, _ in batch], pairs
