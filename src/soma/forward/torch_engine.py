"""The portable engine: perturbed copies in float32 (or float64), in chunks of copies and time that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.forward.engine import Engine, Problem
from soma.models import lstm
from soma.models.experts import Experts
from soma.models.lstm import State
from soma.models.spec import VOCABULARY, LSTMSpec

# Floats of activations in memory at once. The resulting chunks depend on the sizes of the problem alone, never on the
# number of experts, threads or devices: a chunk holds copies of one expert.
_BUDGET = {"cpu": 1 << 21, "cuda": 1 << 28}
_TIME_CHUNK = 64


class TorchEngine(Engine):
    """Batched matrix products over the copies of one expert, on any torch device."""

    name = "torch"

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """Take a device and a dtype: float64 for measurements with many directions; steps stay rounded to float32."""
        self.device, self.dtype = device, dtype

    def _losses(self, at: Problem) -> NDArray[np.float64]:
        experts, tokens, signs, directions = at.experts, at.tokens, at.signs, len(at.probes.directions)
        chunk = self._copies(experts.spec, tokens) // len(signs) or 1
        out = np.empty((len(experts), directions, len(signs)))
        for e, expert in enumerate(experts.to(self.dtype)):
            for first in range(0, directions, chunk):
                part = at.probes.part(slice(e, e + 1), slice(first, first + chunk))
                step = at.eps[e] * torch.from_numpy(part.vectors()[0]).to(self.device).float()
                copies = expert.copies(torch.cat([expert.theta + sign * step for sign in signs]))
                losses = self._per_sequence(copies, tokens[e]).mean(dim=1)
                out[e, first : first + chunk] = losses.view(len(signs), -1).T.cpu().numpy()
        return out

    def token_losses(self, experts: Experts, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        rows = self._rows(experts.spec, tokens)
        out = np.empty((*tokens.shape[:2], tokens.shape[2] - 1))
        for e, expert in enumerate(experts.to(self.dtype)):
            for first in range(0, tokens.shape[1], rows):
                part = self._blocks(expert, tokens[e, first : first + rows])
                losses = torch.cat([lstm.cross_entropy(h, expert.head, y) for h, y in part], dim=2)
                out[e, first : first + rows] = losses[0].double().cpu().numpy()
        return out

    def hidden(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        pairs = zip(experts.to(self.dtype), tokens, strict=True)
        return torch.stack([torch.cat([h[0] for h, _ in self._blocks(expert, own)], dim=1) for expert, own in pairs])

    def _per_sequence(self, copies: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        """Compute the mean loss of every sequence [B, T + 1] for P copies of one expert; float64 [P, B]."""
        total = torch.zeros(len(copies), tokens.shape[0], dtype=torch.float64, device=self.device)
        for h, targets in self._blocks(copies, tokens):
            total += lstm.cross_entropy(h, copies.head, targets).double().sum(dim=2)
        return total / (tokens.shape[1] - 1)

    def _blocks(self, copies: Experts, tokens: NDArray[np.uint8]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield hidden states [P, B, t, H] and targets [P, B, t] of successive time blocks of tokens [B, T + 1]."""
        on_device = torch.from_numpy(tokens).to(self.device).expand(len(copies), -1, -1)
        state: State | None = None
        for first in range(0, tokens.shape[1] - 1, _TIME_CHUNK):
            last = min(first + _TIME_CHUNK, tokens.shape[1] - 1)
            h, state = lstm.hidden(copies, on_device[:, :, first:last], state)
            yield h, on_device[:, :, first + 1 : last + 1]

    def _copies(self, spec: LSTMSpec, tokens: NDArray[np.uint8]) -> int:
        """Return the number of perturbed copies in one chunk."""
        time = min(_TIME_CHUNK, tokens.shape[2] - 1)
        per_copy = tokens.shape[1] * time * (10 * spec.width + VOCABULARY)
        return max(1, _BUDGET[self.device.type] // per_copy)

    def _rows(self, spec: LSTMSpec, tokens: NDArray[np.uint8]) -> int:
        """Return the number of sequences in one chunk of an unperturbed pass."""
        return max(1, _BUDGET[self.device.type] // ((tokens.shape[2] - 1) * (10 * spec.width + VOCABULARY)))
