"""The oracle: one copy at a time, in float64."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.forward.engine import Engine
from soma.models import lstm
from soma.models.spec import LSTMSpec
from soma.probes import Probes


class ReferenceEngine(Engine):
    """A float64 loop over experts, directions and signs; slow and plain."""

    name = "reference"

    def losses(
        self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8], probes: Probes, eps: list[float]
    ) -> NDArray[np.float64]:
        signs = torch.from_numpy(probes.signs()).double()
        out = np.empty((*signs.shape[:2], 2))
        for e in range(signs.shape[0]):
            for j in range(signs.shape[1]):
                for s, step in enumerate((eps[e], -eps[e])):
                    copy = theta[e].double() + step * signs[e, j]
                    out[e, j, s] = self.token_losses(spec, copy[None], head[e : e + 1], tokens[e : e + 1]).mean()
        return out

    def token_losses(
        self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]
    ) -> NDArray[np.float64]:
        targets = torch.from_numpy(tokens[:, :, 1:])
        losses = lstm.cross_entropy(self.hidden(spec, theta, head, tokens), head.double(), targets)
        return losses.numpy()

    def hidden(self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]) -> Tensor:
        inputs = torch.from_numpy(tokens[:, :, :-1])
        return lstm.hidden(spec, theta.double(), head.double(), inputs)[0]
