"""Learner for experts trained by differences of losses along random directions."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.config.training import Training
from soma.estimators import spsa
from soma.forward.probes import Probes
from soma.models.count import spsa_forwards
from soma.numerics.rng import Stream
from soma.training.learner import LSTMLearner, Scheduled


class SPSALearner(LSTMLearner):
    """Differences of losses for the body, the delta rule for the head (docs/paper.md section 4).

    With `alternating` differences, directions are numbered by pairs of updates: 2t and 2t + 1 use those of t.
    """

    @staticmethod
    def forwards(settings: Training) -> int:
        return spsa_forwards(settings.n_pert, settings.difference)

    def gradients(
        self, update: int, batches: list[NDArray[np.uint8]], scheduled: Scheduled
    ) -> tuple[Tensor, Tensor | None, NDArray[np.float64]]:
        s = self.run.settings
        stream = Stream.named(self.run.seed, self.run.kind, "probe")
        numbers = self.group.experts
        number, side = spsa.turn(s.difference, update)
        probes = [
            Probes(self.experts.spec, stream, s.probe, number, tuple(numbers), range(a * s.n_pert, (a + 1) * s.n_pert))
            for a in range(s.accumulation)
        ]
        for i, expert in enumerate(numbers):
            addresses = (repr((p.stream.key, p.kind, p.update, expert, p.directions)) for p in probes)
            self._chain(i, "probes", *(address.encode() for address in addresses))
        estimate = spsa.estimate(
            self.engine, self.experts, batches, probes, scheduled(s.eps), s.loss, s.difference, side
        )
        body = torch.from_numpy(estimate.gradient.astype(np.float32)).to(self.device)
        return body, self._head_gradient(batches) if self.run.trains_head else None, estimate.loss

    def _head_gradient(self, batches: list[NDArray[np.uint8]]) -> Tensor:
        first, *others = (self.engine.head_gradient(self.experts, tokens) for tokens in batches)
        for other in others:
            first += other
        return first.div_(len(batches))
