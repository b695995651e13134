"""Learner for one recurrent model trained by evolution strategies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from soma.estimators.eggroll import Eggroll, read_streams
from soma.models import gru
from soma.numerics.rng import Stream
from soma.training.learner import Learner, Scheduled, Start


class EggrollLearner(Learner):
    """Evolution strategies over the whole training text, read as streams; members carry their states."""

    def begin(self, start: Start | None) -> None:
        run = self.run  # which starts at random: the configuration allows nothing else
        stream = Stream.named(run.seed, run.kind, "eggroll")
        self.rule = Eggroll(run.gru, stream, **run.settings.eggroll.model_dump())
        theta = gru.initialise(run.gru, Stream.named(run.seed, run.kind, "init")).to(self.device)
        self.weights = {"body": theta[None]}
        self.memory = {"states": self.rule.initial_states(self.device)}
        self.chains = [{}]

    def step(self, update: int, scheduled: Scheduled) -> NDArray[np.float64]:
        s = self.run.settings.eggroll
        tokens = read_streams(self.group.windows.text, s.streams, s.tokens, update)
        theta, states, seen = self.rule.advance(self.weights["body"][0], tokens, self.memory["states"], update)
        self.weights["body"][0].copy_(theta)
        self.memory["states"].copy_(states)
        self.notes = f"moved {seen.moved:.2%}, ties {seen.ties:.2%}, median |Z|/√P {seen.evidence[0]:.2f}"
        return np.array([seen.loss])

    def token_losses(self, expert: int, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        s = self.run.settings.eggroll
        return gru.token_losses(
            self.rule.spec, self.weights["body"][expert], tokens, nonlinearity=s.nonlinearity, separator=s.separator
        )
