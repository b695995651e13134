"""Losses through an evaluation engine, one expert after another: bit-identical to the evaluation step.

Slower than the other runners if experts have few sequences each. Shapes as in `soma.inference.runner`.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from soma.evaluation.ensemble import lstm_losses
from soma.forward.engine import Engine
from soma.inference.batched import BatchedRunner
from soma.models.experts import Experts


class EvaluatorRunner(BatchedRunner):
    """A runner that computes losses by an engine and generates text by the batched runner on the same device."""

    def __init__(self, experts: Experts, engine: Engine, device: torch.device) -> None:
        super().__init__(experts, device)
        self.name = f"evaluator ({engine.name})"
        self._losses = lstm_losses(engine, Experts.of(self.spec, self._bodies, self._heads))

    def losses(
        self, expert: NDArray[np.integer], sequence: NDArray[np.integer], tokens: NDArray[np.uint8], scored: int
    ) -> NDArray[np.float64]:
        out = np.empty((len(expert), scored))
        for e in np.unique(expert):
            pairs = np.flatnonzero(expert == e)
            out[pairs] = self._losses(int(e), tokens[sequence[pairs]])[:, -scored:]
        return out
