"""GPU runner: the kernels of training over the experts of a batch, each with its own sequences, chunk by chunk.

Shapes as in `soma.inference.batched`; N is the size of a body's padded layout.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from soma.forward.triton_network import Network, Tuning, current, layout
from soma.inference.batched import BatchedRunner
from soma.models.experts import Experts


class TritonRunner(BatchedRunner):
    """A runner with compiled kernels on a CUDA device, or in Triton's interpreter on a CPU, for tests."""

    name = "triton"

    def __init__(self, experts: Experts, device: torch.device, *, tuning: Tuning | None = None) -> None:
        super().__init__(experts, device)
        self._network = network = Network(layout(self.spec), device, tuning=tuning or Tuning())
        self._bodies, self._heads = network.pad_bodies(self._bodies), network.pad_heads(self._heads)
        self._tile = network.tuning.lstm_tile
        # A program holds one tile of any expert; matrix products are faster if more sequences share a matrix.
        self._cut = self._tile if network.layout.narrow else None

    def start(self, pairs: int) -> Tensor:
        """Return zero hidden and cell states of every block, [2, depth, P, B, D]; the first of B is the pair's."""
        return self._network.start(pairs, 1)

    def _nats(self, theta: Tensor, head: Tensor, text: Tensor, skip: int) -> Iterator[Tensor]:
        with current(self.device):
            for steps, losses in self._network.losses(theta, head, self._network.pad_tokens(text), skip):
                yield losses[:, max(0, skip - steps.start) :, : text.shape[1]].transpose(1, 2)

    def _read(self, theta: Tensor, head: Tensor, text: Tensor, state: Tensor) -> Tensor:
        inputs = self._network.pad_tokens(text)
        with current(self.device):
            for _, stream in self._network.forward(theta, head, inputs, state):
                last = stream[:, -inputs.shape[2] :]
            return self._network.hidden(theta, last.contiguous())[:, 0, : self.spec.embedding]
