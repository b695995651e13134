"""The reference engine that others are tested against: one copy at a time, in float64."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.forward.engine import Engine
from soma.forward.probes import Probes
from soma.models import lstm
from soma.models.spec import LSTMSpec


class ReferenceEngine(Engine):
    """A float64 loop over experts, directions and signs; slow and plain."""

    name = "reference"

    def losses(
        self,
        spec: LSTMSpec,
        theta: Tensor,
        head: Tensor,
        tokens: NDArray[np.uint8],
        probes: Probes,
        eps: list[float],
        signs: tuple[int, ...] = (1, -1),
    ) -> NDArray[np.float64]:
        z = torch.from_numpy(probes.vectors()).double()
        out = np.empty((*z.shape[:2], len(signs)))
        for e in range(z.shape[0]):
            for j in range(z.shape[1]):
                for s, sign in enumerate(signs):
                    copy = theta[e].double() + sign * eps[e] * z[e, j]
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
