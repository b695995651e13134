"""Learner for one recurrent model trained by evolution strategies."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from soma.estimators.eggroll import Eggroll, read_streams
from soma.forward.engine import Engine
from soma.models import gru
from soma.numerics.rng import Stream
from soma.runs import RunSpec
from soma.training.learner import Learner, Scheduled, Shard, Start, Windows


class EggrollLearner(Learner):
    """Evolution strategies over the whole training text, read as streams; members carry their states."""

    def __init__(
        self,
        run: RunSpec,
        experts: range,
        windows: Windows,
        shards: list[Shard],
        engine: Engine,
        device: torch.device,
        start: Start | None = None,
    ) -> None:
        """Take the arguments of all learners; `shards`, `engine` and `start` are not used."""
        s = run.settings.eggroll
        stream = Stream.named(run.seed, run.kind, "eggroll")
        self.windows, self.settings = windows, s
        self.rule = Eggroll(run.gru, stream, **s.model_dump())
        theta = gru.initialise(run.gru, Stream.named(run.seed, run.kind, "init")).to(device)
        self.weights = {"body": theta[None]}
        self.memory = {"states": self.rule.initial_states(device)}
        self.chains = [{}]

    def step(self, update: int, scheduled: Scheduled) -> NDArray[np.float64]:
        s = self.settings
        tokens = read_streams(self.windows.text, s.streams, s.tokens, update)
        theta, states, seen = self.rule.advance(self.weights["body"][0], tokens, self.memory["states"], update)
        self.weights["body"][0].copy_(theta)
        self.memory["states"].copy_(states)
        self.notes = f"moved {seen.moved:.2%}, ties {seen.ties:.2%}, median |Z|/√P {seen.evidence[0]:.2f}"
        return np.array([seen.loss])

    def token_losses(self, expert: int, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        s = self.settings
        return gru.token_losses(
            self.rule.spec, self.weights["body"][expert], tokens, nonlinearity=s.nonlinearity, separator=s.separator
        )
