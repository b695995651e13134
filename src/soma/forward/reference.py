"""The reference engine that others are tested against: one copy at a time, in float64."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.forward.engine import Engine, Problem
from soma.models import lstm
from soma.models.experts import Experts


class ReferenceEngine(Engine):
    """A float64 loop over experts, directions and signs; slow and plain."""

    name = "reference"

    def _losses(self, at: Problem) -> NDArray[np.float64]:
        z = torch.from_numpy(at.probes.vectors()).double()
        out = np.empty((*z.shape[:2], len(at.signs)))
        for e, expert in enumerate(at.experts.to(torch.float64)):
            for j in range(z.shape[1]):
                for s, sign in enumerate(at.signs):
                    copy = expert.copies(expert.theta + sign * at.eps[e] * z[e, j])
                    out[e, j, s] = self.token_losses(copy, at.tokens[e : e + 1]).mean()
        return out

    def token_losses(self, experts: Experts, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        targets = torch.from_numpy(tokens[:, :, 1:])
        return lstm.cross_entropy(self.hidden(experts, tokens), experts.head.double(), targets).numpy()

    def hidden(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        inputs = torch.from_numpy(tokens[:, :, :-1])
        return lstm.hidden(experts.to(torch.float64), inputs)[0]
