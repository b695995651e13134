"""The portable engine in float64: batched copies instead of the reference's loop, for measurements that need both
precision and many directions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from soma.forward.torch_engine import TorchEngine
from soma.models.spec import LSTMSpec
from soma.probes import Probes


class DoubleEngine(TorchEngine):
    """Float64 products of float64 weights; only the step eps itself is rounded to float32 (6e-8 of a difference)."""

    name = "double"

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
        return super().losses(spec, theta.double(), head.double(), tokens, probes, eps, signs)

    def token_losses(
        self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]
    ) -> NDArray[np.float64]:
        return super().token_losses(spec, theta.double(), head.double(), tokens)

    def hidden(self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]) -> Tensor:
        return super().hidden(spec, theta.double(), head.double(), tokens)
