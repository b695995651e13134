"""Learner for one recurrent model trained by evolution strategies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.estimators.eggroll import Eggroll, annealed, read_streams
from soma.forward import distributed
from soma.forward.members import engine_of
from soma.models import gru
from soma.numerics.rng import Stream
from soma.runs import RunSpec
from soma.training.learner import Learner, Scheduled, Start

SCHEDULES = {"alpha_halved_at", "step_halved_at"}
"""Settings that change the estimator from update to update."""


def estimator(run: RunSpec, engine: str = "torch") -> Eggroll:
    """Return a run's estimator for an engine, with the alpha and the step of its first update."""
    stream = Stream.named(run.seed, run.kind, "eggroll")
    settings = run.settings.eggroll.model_dump(exclude=SCHEDULES)
    return Eggroll(run.gru, stream, **settings, engine=engine_of(engine))


def initial_weights(run: RunSpec) -> Tensor:
    """Return the weights from which a run starts, [M]."""
    return gru.initialise(run.gru, Stream.named(run.seed, run.kind, "init"))


class EggrollLearner(Learner):
    """Evolution strategies over the whole training text, read as streams; members carry their states.

    Workers of one job divide the pairs. They exchange losses and sums of perturbations, which are exact, but not the
    states: those come together only when the run's state is saved.
    """

    streams = True

    def begin(self, start: Start | None) -> None:
        run = self.run  # which starts at random: the configuration allows nothing else
        self.rule = estimator(run, self.engine.name)
        theta = initial_weights(run).to(self.device)
        self.weights = {"body": theta[None]}
        self.memory = {"states": self.rule.initial_states(self.device)}
        self.chains = [{}]

    def step(self, update: int, scheduled: Scheduled) -> NDArray[np.float64]:
        s = self.run.settings.eggroll
        tokens = read_streams(self.group.text, s.streams, s.tokens, update)
        rule = self.rule_at(update, scheduled)
        weights, states = self.weights["body"][0], self._states(distributed.rank())
        losses, after, z = rule.evaluate(weights, tokens, states, update, self._pairs(distributed.rank()))
        states.copy_(after)
        shares = [len(self._pairs(worker)) for worker in range(distributed.workers())]
        everyones = distributed.gathered(torch.from_numpy(losses), shares).numpy()
        theta, seen = rule.apply(weights, distributed.added(z), everyones)
        weights.copy_(theta)
        self.measured = {"alpha": rule.alpha, "step": rule.step, "moved": seen.moved, "ties": seen.ties}
        return np.array([seen.loss])

    def collect(self) -> None:
        for worker in range(1, distributed.workers()):
            distributed.send_to_leader(self._states(worker), worker)

    def _pairs(self, worker: int) -> range:
        """Return a worker's pairs: whole blocks, which one worker would compute as well, and so to the same bytes."""
        size = self.rule.pair_chunk
        blocks = distributed.share(-(-self.rule.pairs // size), worker, distributed.workers())
        return range(min(blocks.start * size, self.rule.pairs), min(blocks.stop * size, self.rule.pairs))

    def _states(self, worker: int) -> Tensor:
        """Return the states of a worker's pairs, a view; those of other workers are out of date until `collect`."""
        pairs = self._pairs(worker)
        return self.memory["states"][pairs.start : pairs.stop]

    def rule_at(self, update: int, scheduled: Scheduled) -> Eggroll:
        """Return the estimator of an update: with the alpha and the step that its schedules give."""
        s, updates = self.run.settings.eggroll, self.run.updates
        alpha = annealed(s.alpha, s.alpha_halved_at, update, updates)
        if s.step_halved_at == "plateau":
            return replace(self.rule, alpha=alpha, step=scheduled(s.step)[0])
        return replace(self.rule, alpha=alpha, step=annealed(s.step, s.step_halved_at, update, updates))

    def token_losses(self, expert: int, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        return self.rule.engine.token_losses(self.rule.members, self.weights["body"][expert], tokens)
