"""Inputs that a measurement may open, which exclude the test set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soma.config.training import Compute
from soma.data.shards import Shards
from soma.data.windows import TrainWindows, random_crops
from soma.evaluation.published import Published, Routers
from soma.forward.engine import Engine
from soma.forward.registry import create
from soma.numerics.rng import Stream
from soma.runs import RunSpec


@dataclass(frozen=True)
class Inputs:
    """Everything that a measurement may read, which excludes the test set."""

    settings: Mapping[str, Any]
    """`runs` (Plan.published), `milestones` (true to open all of them), `product` and `seed`."""
    results: Path
    """Folder of the campaign."""
    compute: Compute
    kept: dict[tuple[str, Any], Any] = field(default_factory=dict)

    @property
    def product(self) -> Mapping[str, Any]:
        return self.settings["product"]

    @cached_property
    def engine(self) -> Engine:
        return create(self.compute.engine, self.compute.device)

    @cached_property
    def runs(self) -> list[Published]:
        return list(self.opened())

    def opened(self) -> Iterator[Published]:
        """Open the runs one at a time, with final weights, or those of all milestones if the plan says so."""
        for entry in self.settings["runs"]:
            yield Published.open(entry, self.results / "runs", milestones=self.settings["milestones"])

    def updates(self, run: RunSpec) -> list[int]:
        """Return the measured updates of a run: its end, and its first milestone if the catalogue says so."""
        return sorted({run.milestones[0], run.updates}) if self.settings["milestones"] else [run.updates]

    def stream(self, *purpose: str) -> Stream:
        return Stream.named(self.settings["seed"], *purpose)

    def windows(self, run: RunSpec) -> TrainWindows:
        return self._keep(("windows", run.window), lambda: TrainWindows(self.results / "corpus/train", run.window))

    def shards(self, run: RunSpec) -> Shards:
        return self._keep(("shards", run.shards), lambda: Shards.open(self.results / "shards" / run.shards))

    def _keep(self, key: tuple[str, Any], make: Callable[[], Any]) -> Any:
        """Return the cached value of a key, making it at first use."""
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    @property
    def routers(self) -> Routers:
        return Routers(self.results / "routing")

    def batch(
        self, run: RunSpec, expert: int, sequences: int, index: int, purpose: str, validation: bool = False
    ) -> NDArray[np.uint8]:
        """Draw random crops of an expert's training (or expert-validation) windows; uint8 [sequences, T + 1].

        Numbered batches of one purpose are independent; windows are drawn with replacement.
        """
        shards, own = self.shards(run), run.shard(expert)
        ids = np.asarray(shards.validation(own) if validation else shards.train(own))
        draws = self.stream("measure", purpose).uniform(2 * sequences, update=index, expert=expert)
        return random_crops(self.windows(run), ids, draws, run.window, run.settings.crop)
