"""Learners, which define how a group of experts takes one update. The loop around them is the same for every method.

Shapes: E experts of the group, M body parameters, V bytes, H embedding width, A accumulated batches, B sequences, T
bytes.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.config.training import Training
from soma.data.windows import Rows, random_crops
from soma.forward.engine import Engine
from soma.models.experts import Experts
from soma.models.lstm import initialise
from soma.numerics.rng import Stream
from soma.runs import Family, RunSpec, own_method
from soma.training.adam import Adam

_DRAWN = 1 << 15
"""Numbers for batches that are drawn at once."""

Scheduled = Callable[[float], list[float]]
"""Maps an initial lr or eps to its current value for each expert of the group."""


@dataclass(frozen=True)
class Start:
    """Initial weights of experts."""

    experts: Experts
    """The group's experts, or one that all start from."""
    memory: dict[str, Tensor] = field(default_factory=dict)
    """Optimiser moments of a continued run, as in `Learner.memory`."""
    updates: int = 0
    """Number of updates already taken."""


@dataclass(frozen=True)
class Shard:
    """The windows of one expert."""

    windows: Rows
    train: NDArray[np.unsignedinteger]
    """Ids of those that it trains on."""
    validation: NDArray[np.unsignedinteger]
    """Ids of those held out for its validation loss."""


@dataclass(frozen=True)
class Group:
    """The experts of a run that one process trains in lockstep, and their text."""

    run: RunSpec
    experts: range
    """Numbers of the experts."""
    shards: Sequence[Shard]
    """One for each expert."""
    text: NDArray[np.uint8]
    """All bytes of the training text, for methods that read it as a stream."""


class Learner(ABC):
    """The weights of a group of experts, and one update of them."""

    weights: dict[str, Tensor]
    """Learned tensors by published name (`body`, `head`), each with a leading expert axis; changed in place."""
    measured: Mapping[str, float] = MappingProxyType({})
    """What the method measured on its last update, by column of the history; for the log too."""
    memory: dict[str, Tensor]
    """Everything else that the next update depends on (optimiser moments, carried states); changed in place."""
    chains: list[dict[str, str]]
    """For each expert a SHA-256 of all its draws so far, `data` and `probes`: equal at an update if and only if all
    earlier draws were equal. Kept for methods that are compared on paired draws."""

    def __init__(self, group: Group, engine: Engine, device: torch.device, start: Start | None = None) -> None:
        """Begin with weights from `start`, or random ones if it is None."""
        self.group, self.run, self.engine, self.device = group, group.run, engine, device
        self.begin(start)

    streams: ClassVar[bool] = False
    """Whether the method reads the text as a stream instead of the windows of its experts."""

    @abstractmethod
    def begin(self, start: Start | None) -> None:
        """Set `weights`, `memory` and `chains` to those before the first update."""

    @abstractmethod
    def step(self, update: int, scheduled: Scheduled) -> NDArray[np.float64]:
        """Take update number `update` (from 0) and return its training loss, nats per byte, [E]."""

    def collect(self) -> None:  # noqa: B027  # most methods have nothing to collect
        """Bring `memory` up to date in the worker that saves; all workers of a job call it together."""

    @abstractmethod
    def token_losses(self, expert: int, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Compute the loss of every target of windows [B, T + 1] under one expert of the group; [B, T]."""


class AdamLearner(Learner):
    """Experts that learn from batches of crops with Adam; subclasses hold the model and compute the gradient."""

    family: ClassVar[Family] = "lstm"
    """Kind of the model."""

    def begin_with(self, weights: dict[str, Tensor], start: Start | None) -> None:
        """Begin with weights, and with the optimiser state of a continued run."""
        run = self.run
        self._batches = Stream.named(run.seed, run.kind, "batch")
        self._drawn = 0, np.empty((0, 0, 0, 0))
        s = run.settings
        self._body_rule = Adam(s.beta1, s.beta2, s.delta, s.weight_decay)
        self._head_rule = Adam(s.beta1, s.beta2, s.delta, 0.0)
        self.taken = 0 if start is None else start.updates
        self.chains = [{"data": "", "probes": ""} for _ in self.group.experts]
        self.weights = weights
        memory = {} if start is None else start.memory
        self.memory = {
            f"{name}.{moment}": torch.zeros_like(tensor) for name, tensor in self.weights.items() for moment in "mv"
        } | {name: tensor.to(self.device, copy=True) for name, tensor in memory.items()}

    def step(self, update: int, scheduled: Scheduled) -> NDArray[np.float64]:
        s = self.run.settings
        batches = [self._batch(update, a) for a in range(s.accumulation)]
        for i in range(len(self.group.experts)):
            self._chain(i, "data", *(batch[i].tobytes() for batch in batches))
        body, head, loss = self.gradients(update, batches, scheduled)
        rates = torch.tensor(scheduled(s.lr), device=self.device)
        self._apply("body", body, self._body_rule, update, rates[:, None])
        if head is not None:
            # The head's rate is reduced with the body's.
            self._apply("head", head, self._head_rule, update, (rates * (s.head_lr / s.lr))[:, None, None])
        return loss

    @abstractmethod
    def gradients(
        self, update: int, batches: list[NDArray[np.uint8]], scheduled: Scheduled
    ) -> tuple[Tensor, Tensor | None, NDArray[np.float64]]:
        """Compute gradients of the bodies [E, M] and of trained heads [E, V, H] at the current iterate, and the loss
        [E].
        """

    def _apply(self, name: str, gradient: Tensor, rule: Adam, update: int, lr: Tensor) -> None:
        steps = self.taken + update + 1
        rule.step(self.weights[name], gradient, self.memory[f"{name}.m"], self.memory[f"{name}.v"], steps, lr)

    def _chain(self, expert: int, what: str, *drawn: bytes) -> None:
        """Add a draw of an expert of the group to its chain."""
        digest = hashlib.sha256(self.chains[expert][what].encode())
        for part in drawn:
            digest.update(part)
        self.chains[expert][what] = digest.hexdigest()

    def _batch(self, update: int, accumulation: int) -> NDArray[np.uint8]:
        """Draw random crops of random windows of each expert's shard; uint8 [E, B, T + 1]."""
        s, group = self.run.settings, self.group
        pairs = zip(group.shards, self._draw(update, accumulation), strict=True)
        return np.stack([random_crops(shard.windows, shard.train, u, self.run.window, s.crop) for shard, u in pairs])

    def _draw(self, update: int, accumulation: int) -> NDArray[np.float64]:
        """Draw two uniform numbers for each crop of a batch; [E, 2 B].

        Several updates are drawn at once, because a call of numpy takes longer than the numbers of one.
        """
        s, experts = self.run.settings, np.array(self.group.experts)
        first, drawn = self._drawn
        if not first <= update < first + drawn.shape[1]:
            updates = np.arange(update, update + max(1, _DRAWN // (s.accumulation * len(experts) * 2 * s.batch)))
            numbers = np.arange(s.accumulation)[:, None, None]
            drawn = self._batches.uniform(2 * s.batch, direction=numbers, update=updates[:, None], expert=experts)
            self._drawn = first, drawn = update, drawn
        return drawn[accumulation, update - first]


class LSTMLearner(AdamLearner):
    """LSTM experts; subclasses compute the gradient."""

    experts: Experts
    """The current iterate; its tensors are changed in place."""

    @staticmethod
    def forwards(settings: Training) -> int:
        """Count the forward passes of a batch, for a method of one's own; a backward pass counts two."""
        raise NotImplementedError("a method of one's own counts its forward passes in `forwards(settings)`")

    def begin(self, start: Start | None) -> None:
        run, n = self.run, len(self.group.experts)
        if start is None:
            body, head = initialise(run.model, Stream.named(run.seed, run.kind, "init"))
            start = Start(Experts(run.model, body[None], head[None]))
        first = start.experts.to(self.device)
        theta = first.theta.expand(n, -1).clone(memory_format=torch.contiguous_format)
        head = first.head.expand(n, -1, -1)
        if run.trains_head:
            head = head.clone(memory_format=torch.contiguous_format)
        self.experts = Experts(run.model, theta, head)
        self.begin_with({"body": theta} | ({"head": head} if run.trains_head else {}), start)

    def token_losses(self, expert: int, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        return self.engine.token_losses(self.experts[expert], tokens[None])[0]


LEARNERS = {
    "spsa": "soma.training.methods.spsa:SPSALearner",
    "bptt": "soma.training.methods.bptt:BPTTLearner",
    "eggroll": "soma.training.methods.eggroll:EggrollLearner",
}
"""Class of each method. Imported when used, so that training by one method does not depend on the code of others."""


def learner_of(method: str) -> type[Learner]:
    """Import the class of a method, which may be one of the user's own, `module:Class`."""
    learner: type[Learner] = own_method(method) or resolve_name(LEARNERS[method])
    return learner
