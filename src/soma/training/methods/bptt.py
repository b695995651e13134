"""Learner for experts trained by backpropagation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from soma.config.training import Training
from soma.estimators import bptt
from soma.models.count import BPTT_FORWARDS
from soma.training.learner import LSTMLearner, Scheduled


class BPTTLearner(LSTMLearner):
    """Backpropagation through time for body and head."""

    @staticmethod
    def forwards(settings: Training) -> int:
        return BPTT_FORWARDS

    def gradients(
        self, update: int, batches: list[NDArray[np.uint8]], scheduled: Scheduled
    ) -> tuple[Tensor, Tensor | None, NDArray[np.float64]]:
        body, head, loss = bptt.gradient(self.experts, batches, self.run.settings.head_path)
        return body, head if self.run.trains_head else None, loss
