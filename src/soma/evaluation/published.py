"""Trained runs as steps open them: weights, shared head, and the router that chooses among experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from soma.data.sets import EvaluationSet
from soma.models.experts import Experts
from soma.models.lstm import initialise
from soma.numerics.rng import Stream
from soma.routing.features import Features
from soma.routing.router import Router
from soma.runs import Iterate, RunSpec, recorded
from soma.training.checkpoint import Checkpoints


@dataclass(frozen=True)
class Published:
    """A run's published weights."""

    run: RunSpec
    checkpoints: Checkpoints
    shared_head: Tensor | None
    """Frozen head [V, H] that all experts of the run share, if any."""

    @classmethod
    def open(cls, entry: Mapping[str, Any], runs: Path, *, milestones: bool = False) -> Published:
        """Open an entry of `Plan.published` in the folder of all runs: final weights, or all `milestones`."""
        run = RunSpec.model_validate(entry["run"])
        parts = {Path(part).name: runs / part for part in entry["parts"]}
        head = runs / entry["head"] if entry["head"] else None
        return cls(run, Checkpoints.open(run, parts, milestones=milestones), _frozen_head(run, head))

    def experts(self, update: int | None = None, iterate: Iterate = "last") -> Experts:
        """Return the LSTM experts after an update; None is the end of the budget."""
        at = self.run.updates if update is None else update
        heads = self.checkpoints.heads(at, iterate) if self.shared_head is None else self.shared_head[None]
        return Experts.of(self.run.model, self.checkpoints.bodies(at, iterate), heads)


class Routers:
    """The routers of a campaign, loaded at first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._features: Features | None = None
        self._routers: dict[int, Router] = {}

    def router(self, run: RunSpec) -> Router | None:
        """Return the router of a run with clusters, else None."""
        if run.clusters is None:
            return None
        if run.clusters not in self._routers:
            if self._features is None:
                self._features = Features.load(self.folder / "features")
            self._routers[run.clusters] = Router.load(self.folder / f"router-n{run.clusters}", self._features)
        return self._routers[run.clusters]

    def select(self, run: RunSpec, data: EvaluationSet, k: int) -> NDArray[np.int64]:
        """Choose experts of every window, [n, k]: the router's nearest, or the first k for shards without clusters."""
        router = self.router(run)
        if router is None:
            return np.broadcast_to(np.arange(k), (len(data), k))
        return router.route(data.windows, data.prefix, k, run.experts)


def _frozen_head(run: RunSpec, head: Path | None) -> Tensor | None:
    """Return the head [V, H] that all experts share, from another run or as initialised; None if they share none."""
    if run.trains_head or run.family != "lstm":
        return None
    if head is None:
        return initialise(run.model, Stream.named(run.seed, run.kind, "init"))[1]
    source = recorded(head)
    return Checkpoints.open(source, {head.name: head}).heads(source.updates, "last")[0]
