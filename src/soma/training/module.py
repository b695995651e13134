"""A model and an estimator of one's own: any torch module, trained by any function of its losses.

A method of one's own is named in an arm by its place, `method: my_methods:MyLearner`. It draws the same batches as all
others, directions from the same streams, and shares loop, checkpoints, resume, schedule and evaluation.

Shapes: J directions, M parameters, P copies.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from soma.config.training import Training
from soma.errors import SomaError
from soma.forward.module import Counted, Losses, Network
from soma.numerics.rng import Stream
from soma.runs import Family
from soma.training.learner import AdamLearner, Scheduled, Start


def central(losses: Losses, theta: Tensor, directions: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Estimate a gradient by central differences (docs/paper.md section 4), unless a learner has its own estimator.

    Args:
        losses: mean losses of one batch: `losses(copies)` at weights [P, M] gives [P], `losses.gradient(theta)` gives
            the gradient [M] and the loss by backpropagation.
        theta: current weights [M].
        directions: z [J, M].
        eps: size of a perturbation.

    Returns:
        The estimate [M], and the training loss.
    """
    plus, minus = losses(theta + eps * directions), losses(theta - eps * directions)
    slopes = (plus - minus) / (2 * eps)
    return slopes.float() @ directions / len(directions), (plus + minus).mean() / 2


class ModuleLearner(AdamLearner):
    """Experts that are torch modules, each trained by `estimate` and Adam."""

    family: ClassVar[Family] = "module"
    estimate = staticmethod(central)

    @staticmethod
    @abstractmethod
    def module(settings: Training) -> nn.Module:
        """Return a model of an arm's sizes with random weights: bytes [B, T] to logits of the next byte [B, T, 256]."""

    @classmethod
    def network(cls, settings: Training, stream: Stream | None = None, device: torch.device | str = "cpu") -> Network:
        """Return the model as a function of its weights; those that it has are drawn from `stream`."""
        # A module draws its weights from torch's global generator, which is put back afterwards.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0 if stream is None else stream.key >> 1)
            return Network(cls.module(settings), device)

    @classmethod
    @cache
    def parameters(cls, settings: Training) -> int:
        """Count the parameters of one expert (M)."""
        return cls.network(settings).size

    @classmethod
    @cache
    def operations(cls, settings: Training) -> int:
        """Count the operations of one update of one expert, as torch counts them on one sequence of zeros.

        Raises:
            SomaError: if torch counts none.
        """
        network = cls.network(settings)
        losses = Counted(network, np.zeros((1, settings.crop + 1), np.uint8))
        cls.estimate(losses, network.weights(), torch.ones(settings.n_pert, network.size), settings.eps)
        if not losses.operations:
            raise SomaError(
                f"{cls.__name__} takes no operations that torch's counter knows (products of matrices); "
                "give its arm a budget in another method's `operations` by defining `operations(settings)` yourself."
            )
        return losses.operations * settings.batch * settings.accumulation

    @classmethod
    @cache
    def forward_operations(cls, settings: Training) -> int:
        """Count the operations of one expert's forward pass per byte."""
        network = cls.network(settings)
        losses = Counted(network, np.zeros((1, settings.crop + 1), np.uint8))
        losses(network.weights()[None])
        return losses.operations // settings.crop

    def begin(self, start: Start | None) -> None:
        stream = Stream.named(self.run.seed, self.run.kind, "init")
        self.model = self.network(self.run.settings, stream, self.device)
        self.begin_with({"body": self.model.weights().expand(len(self.group.experts), -1).clone()}, start)

    def gradients(
        self, update: int, batches: list[NDArray[np.uint8]], scheduled: Scheduled
    ) -> tuple[Tensor, Tensor | None, NDArray[np.float64]]:
        body, loss = torch.zeros_like(self.weights["body"]), np.zeros(len(self.group.experts))
        for i, eps in enumerate(scheduled(self.run.settings.eps)):
            for number, tokens in enumerate(batches):
                z = self.directions(update, i, number)
                estimate, value = self.estimate(Losses(self.model, tokens[i]), self.weights["body"][i], z, eps)
                body[i] += estimate / len(batches)
                loss[i] += float(value) / len(batches)
        return body, None, loss

    def directions(self, update: int, expert: int, batch: int) -> Tensor:
        """Return the directions of one batch of an update for an expert of the group; float32 [J, M]."""
        s = self.run.settings
        stream = Stream.named(self.run.seed, self.run.kind, "probe")
        numbers = range(batch * s.n_pert, (batch + 1) * s.n_pert)
        self._chain(expert, "probes", repr((stream.key, s.probe, update, self.group.experts[expert], numbers)).encode())
        return self.model.directions(s.probe, stream, update, self.group.experts[expert], numbers)

    def token_losses(self, expert: int, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        return self.model.token_losses(self.weights["body"][expert], tokens)
