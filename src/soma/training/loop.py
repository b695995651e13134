"""The training loop of every method.

It trains a group of experts in lockstep: every array has a leading expert axis, and since all randomness is addressed
by expert, a group gives the same bytes as one process per expert. Everything that the next update depends on is written
atomically as the resume state; a process that is killed at any moment and restarted ends with the same bytes as one
that never stopped.

Shapes: E experts of the group.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.accounting.cost import Ledger
from soma.errors import SomaError
from soma.numerics import exact
from soma.runs import ITERATES, RunSpec
from soma.training.checkpoint import LEG, MEMORY, load_tensors, save_tensors, tensor_name
from soma.training.learner import Learner
from soma.training.plateau import PlateauState, observe, scheduled

log = logging.getLogger("soma.train")

HISTORY_COLUMNS = (
    "update", "expert", "train_loss", "expert_validation", "lr", "eps", "data_sha256", "probes_sha256",
)  # fmt: skip


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
    history: list[tuple[float, ...]] = field(default_factory=list)
    """Rows of the numeric HISTORY_COLUMNS."""
    drawn: list[tuple[str, str]] = field(default_factory=list)
    """For each row the expert's chains of data and probes (`Learner.chains`), empty for methods without chains."""
    measured: list[dict[str, float]] = field(default_factory=list)
    """For each row what the method measured on that update (`Learner.measured`)."""
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
        save: Callable[[], None],
        *,
        until: int | None = None,
        save_every: float = 60.0,
        should_stop: Callable[[], bool] = lambda: False,
        report_every: float = 10.0,
    ) -> None:
        """Train to the end of the budget, or to an earlier update.

        Args:
            save: writes the resume state; called every `save_every` seconds and before an interruption.
            until: the last update to take; None: all of the budget.
            should_stop: polled after every update.

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
            if should_stop():
                save()
                raise Interrupted(f"{self.run.id}: stopped after update {u} of {self.run.updates}; state saved")
            if now - saved >= save_every:
                with progress.ledger.measure("checkpoint"):
                    save()
                saved = now
            if now - reported >= report_every or (u == self.run.updates and report_every < float("inf")):
                self._report(loss, (u - first) / max(now - began, 1e-9))
                reported = now

    def state(self) -> State:
        """Return the state that the next update depends on; tensors are not copied."""
        groups = {"weights": self.learner.weights, "memory": self.learner.memory}
        tensors = {f"{group}/{name}": tensor for group, of in groups.items() for name, tensor in of.items()}
        schedule = [asdict(state) for state in self.progress.schedule]
        return State(tensors, {"update": self.progress.update, "schedule": schedule, "chains": self.learner.chains})

    def continue_from(self, state: State) -> None:
        """Continue from a state that `state` returned."""
        for name, tensor in self.state().tensors.items():
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
            tokens = self.group.windows.crops(ids, np.zeros(len(ids), np.int64), self.run.window)
            measured = float(exact.mean(self.learner.token_losses(i, tokens)[None])[0])
            lr, eps = (scheduled(s.plateau, progress.schedule[i], x) for x in (s.lr, s.eps))
            progress.history.append((progress.update, expert, float(loss[i]), measured, lr, eps))
            progress.drawn.append((chains[i].get("data", ""), chains[i].get("probes", "")))
            progress.measured.append(dict(self.learner.measured))
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
        validation = f" · expert validation {progress.history[-1][3]:.4f}" if progress.history else ""
        group = f"{experts[0]}" if len(experts) == 1 else f"{experts[0]}-{experts[-1]}"
        measured = self.learner.measured or {"lr": self._scheduled(s.lr)[0]}
        notes = " · " + ", ".join(f"{name} {value:.3g}" for name, value in measured.items())
        log.info(
            f"{self.run.id} expert {group}: update {progress.update}/{total} ({100 * progress.update / total:.0f} %) · "
            f"loss {loss.mean():.4f}{validation}{notes} · {rate:.1f} updates/s · "
            f"{_duration((total - progress.update) / max(rate, 1e-9))} left"
        )


def save_state(path: Path, trainer: Trainer, identity: str) -> None:
    """Write the resume state of the run that `identity` identifies."""
    progress, state = trainer.progress, trainer.state()
    leg = progress.leg or State({}, {})
    tensors = {**state.tensors, "history": torch.tensor(progress.history, dtype=torch.float64)}
    for group, members in {"average": progress.average, "kept": progress.kept, "leg": leg.tensors}.items():
        tensors |= {f"{group}/{name}": tensor for name, tensor in members.items()}
    facts = {
        **state.facts,
        "identity": identity,
        "ledger": progress.ledger.to_json(),
        "drawn": progress.drawn,
        "measured": progress.measured,
        "leg": leg.facts,
    }
    save_tensors(path, tensors, facts)


def restore_state(path: Path, trainer: Trainer, identity: str) -> bool:
    """Continue from a resume state if there is a complete one of the same run, and return whether it did."""
    if not path.exists():
        return False
    try:
        tensors, facts = load_tensors(path)
    except SomaError as error:
        log.warning(f"starting over, since the resume state is unusable: {error}")
        return False
    if facts["identity"] != identity:
        log.warning(f"starting over, since {path} belongs to other settings, data or engine")
        return False
    progress = trainer.progress
    trainer.continue_from(State(tensors, facts))
    progress.history = [tuple(row) for row in tensors["history"].tolist()]
    progress.ledger = Ledger.from_json(facts["ledger"])
    progress.drawn = [(data, probes) for data, probes in facts["drawn"]]
    # missing in states from before methods measured anything
    progress.measured = facts.get("measured") or [{} for _ in progress.history]
    progress.kept = _group(tensors, "kept")
    leg = facts.get("leg")  # missing in states from before legs existed, which are of runs without one
    progress.leg = State(_group(tensors, "leg"), leg) if leg else None
    for name, tensor in _group(tensors, "average").items():
        progress.average[name].copy_(tensor)
    log.info(f"continuing after update {progress.update}")
    return True


def publish_leg(folder: Path, run: RunSpec, part: str, leg: State, identity: str) -> None:
    """Write the state from which the last leg of a part can be replayed."""
    save_tensors(folder / LEG, leg.tensors, {"run": run.id, "part": part, "identity": identity, "state": leg.facts})


def load_leg(folder: Path, identity: str) -> State:
    """Read a state that `publish_leg` wrote.

    Raises:
        SomaError: if the file is missing or damaged, or belongs to another run, other settings, data or engine.
    """
    tensors, facts = load_tensors(folder / LEG)
    if facts["identity"] != identity:
        raise SomaError(f"{folder / LEG} belongs to other settings, data or engine than {folder / 'run.json'} records.")
    return State(tensors, facts["state"])


def _group(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `group/`, by the rest of their names."""
    return {name.removeprefix(f"{group}/"): t for name, t in tensors.items() if name.startswith(f"{group}/")}


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
