"""The training loop of every method.

It trains a group of experts in lockstep: every array has a leading expert axis, and since all randomness is addressed
by expert, a group gives the same bytes as one process per expert. Everything that the next update depends on is saved
(training.states); a process that is killed at any moment and restarted ends with the same bytes as one that never
stopped.

Shapes: E experts of the group.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.accounting.cost import Ledger
from soma.errors import SomaError
from soma.numerics import exact
from soma.runs import ITERATES
from soma.training.checkpoint import MEMORY, tensor_name
from soma.training.history import History
from soma.training.learner import Learner
from soma.training.plateau import PlateauState, observe, scheduled

log = logging.getLogger("soma.train")


@dataclass(frozen=True)
class State:
    """Everything that later updates depend on."""

    tensors: dict[str, Tensor]
    """The learner's weights and memory, as `weights/body`, `memory/body.m` and so on."""
    facts: dict[str, Any]
    """Updates taken, schedule and chains, as JSON."""

    def copied(self) -> State:
        """Return a copy that further updates do not change."""
        return State({name: tensor.cpu().clone() for name, tensor in self.tensors.items()}, copy.deepcopy(self.facts))


@dataclass
class Progress:
    """State of the loop itself, beside the learner's weights and memory."""

    update: int = 0
    """Updates taken."""
    average: dict[str, Tensor] = field(default_factory=dict)
    """Exponential averages of the learner's weights."""
    schedule: list[PlateauState] = field(default_factory=list)
    kept: dict[str, Tensor] = field(default_factory=dict)
    """Milestone weights by published name."""
    leg: State | None = None
    """The state from which the run's last leg can be replayed, once it is reached."""
    history: History = field(default_factory=History)
    """A row for each expert at each check of the schedule."""
    ledger: Ledger = field(default_factory=Ledger)
    failed_at: int | None = None
    """Update at which a run that may fail diverged."""


class Diverged(SomaError):
    """A loss or weight is not finite."""


class Interrupted(Exception):
    """The process was asked to stop and has saved its state."""


class Trainer:
    """Trainer of one group of experts of one run."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.group, self.run = learner, learner.group, learner.run
        self.progress = Progress(
            average={name: tensor.clone() for name, tensor in learner.weights.items()},
            schedule=[PlateauState()] * len(self.group.experts),
        )

    def train(
        self,
        save: Callable[[], object],
        *,
        until: int | None = None,
        save_every: float = 60.0,
        should_stop: Callable[[], bool] = lambda: False,
        agree: Callable[[bool], bool] = bool,
        report_every: float = 10.0,
    ) -> None:
        """Train to the end of the budget, or to an earlier update.

        Args:
            save: writes the resume state; called every `save_every` seconds and before an interruption.
            until: the last update to take; None: all of the budget.
            should_stop: polled after every update.
            agree: returns the same for all workers of a job, True if it gets True in any.

        Raises:
            Interrupted: after saving, if `should_stop` returns True.
            SomaError: at a non-finite loss or weight, naming the update.
        """
        progress, every = self.progress, self.run.settings.plateau.every
        saved = reported = began = time.monotonic()
        first = progress.update
        while progress.update < (self.run.updates if until is None else until):
            try:
                with progress.ledger.measure("update"):
                    loss = self._step()
            except Diverged:
                if not self.run.may_fail:
                    raise
                self._give_up()
                return
            u = progress.update
            if u % every == 0 or u == self.run.updates:
                with progress.ledger.measure("validation"):
                    self._validate(loss)
            if u in self.run.milestones:
                self._keep(u)
            if u == self.run.leg:
                progress.leg = self.state().copied()
            now = time.monotonic()
            if agree(should_stop()):
                save()
                raise Interrupted(f"{self.run.id}: stopped after update {u} of {self.run.updates}; state saved")
            if agree(now - saved >= save_every):
                with progress.ledger.measure("checkpoint"):
                    save()
                saved = now
            if now - reported >= report_every or (u == self.run.updates and report_every < float("inf")):
                self._report(loss, (u - first) / max(now - began, 1e-9))
                reported = now

    def state(self) -> State:
        """Return the state that the next update depends on; tensors are not copied.

        All workers of a job call this together, and that of the first is whole.
        """
        self.learner.collect()
        schedule = [asdict(state) for state in self.progress.schedule]
        facts = {"update": self.progress.update, "schedule": schedule, "chains": self.learner.chains}
        return State(self._tensors(), facts)

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state, by their names in it."""
        groups = {"weights": self.learner.weights, "memory": self.learner.memory}
        return {f"{group}/{name}": tensor for group, of in groups.items() for name, tensor in of.items()}

    def continue_from(self, state: State) -> None:
        """Continue from a state that `state` returned."""
        for name, tensor in self._tensors().items():
            tensor.copy_(state.tensors[name])
        self.progress.update = state.facts["update"]
        self.progress.schedule = [PlateauState(**p) for p in state.facts["schedule"]]
        self.learner.chains = copy.deepcopy(state.facts["chains"])

    def _scheduled(self, initial: float) -> list[float]:
        return [scheduled(self.run.settings.plateau, state, initial) for state in self.progress.schedule]

    def _step(self) -> NDArray[np.float64]:
        """Perform one update of every expert of the group, and return its training losses [E]."""
        progress = self.progress
        loss = self.learner.step(progress.update, self._scheduled)
        progress.update += 1
        finite = np.isfinite(loss)
        for weights in self.learner.weights.values():
            finite &= torch.isfinite(weights).flatten(1).all(dim=1).cpu().numpy()
        if not finite.all():
            bad = ", ".join(str(e) for e, good in zip(self.group.experts, finite, strict=True) if not good)
            raise Diverged(
                f"{self.run.id}: the loss of expert {bad} is not finite at update {progress.update}; lower lr or eps."
            )
        # Plain mean of the first iterates, then an exponential average, so that the starting point has no weight.
        decay = min(self.run.settings.average, (progress.update - 1) / progress.update)
        for name, weights in self.learner.weights.items():
            progress.average[name].mul_(decay).add_((1 - decay) * weights)
        return loss

    def _validate(self, loss: NDArray[np.float64]) -> None:
        """Measure the expert-validation loss of the last iterate and update the schedule."""
        s, progress, chains = self.run.settings, self.progress, self.learner.chains
        for i, (expert, shard) in enumerate(zip(self.group.experts, self.group.shards, strict=True)):
            ids = np.asarray(shard.validation[: s.plateau.windows])
            tokens = shard.windows.crops(ids, np.zeros(len(ids), np.int64), self.run.window)
            measured = float(exact.mean(self.learner.token_losses(i, tokens)[None])[0])
            lr, eps = (scheduled(s.plateau, progress.schedule[i], x) for x in (s.lr, s.eps))
            numbers = (progress.update, expert, float(loss[i]), measured, lr, eps)
            progress.history.append(numbers, chains[i], self.learner.measured)
            progress.schedule[i] = observe(s.plateau, progress.schedule[i], progress.update, measured)

    def _keep(self, update: int) -> None:
        """Keep the weights as those of an update, and the optimiser state if others continue the run."""
        progress = self.progress
        for i, expert in enumerate(self.group.experts):
            for name, weights in self.learner.weights.items():
                versions = dict(zip(ITERATES, (weights, progress.average[name]), strict=True))
                for iterate, tensor in versions.items():
                    progress.kept[tensor_name(expert, update, iterate, name)] = tensor[i].cpu().clone()
            if self.run.keep_memory and update == self.run.updates:
                self.learner.collect()
                for name, tensor in self.learner.memory.items():
                    progress.kept[tensor_name(expert, update, MEMORY, name)] = tensor[i].cpu().clone()
        progress.ledger.mark(update)

    def _give_up(self) -> None:
        """Record divergence: fill the weights with NaN, so that later losses are NaN."""
        progress = self.progress
        log.warning(f"{self.run.id}: not finite at update {progress.update}; counted as a failure")
        progress.failed_at = progress.update
        for weights in self.learner.weights.values():
            weights.fill_(float("nan"))
        for tensor in progress.average.values():
            tensor.fill_(float("nan"))
        for milestone in self.run.milestones:
            if milestone >= progress.update:
                self._keep(milestone)

    def _report(self, loss: NDArray[np.float64], rate: float) -> None:
        s, progress, total, experts = self.run.settings, self.progress, self.run.updates, self.group.experts
        losses = progress.history.column("expert_validation")
        validation = f" · expert validation {losses[-1]:.4f}" if len(losses) else ""
        group = f"{experts[0]}" if len(experts) == 1 else f"{experts[0]}-{experts[-1]}"
        measured = self.learner.measured or {"lr": self._scheduled(s.lr)[0]}
        notes = " · " + ", ".join(f"{name} {value:.3g}" for name, value in measured.items())
        log.info(
            f"{self.run.id} expert {group}: update {progress.update}/{total} ({100 * progress.update / total:.0f} %) · "
            f"loss {loss.mean():.4f}{validation}{notes} · {rate:.1f} updates/s · "
            f"{_duration((total - progress.update) / max(rate, 1e-9))} left"
        )


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
