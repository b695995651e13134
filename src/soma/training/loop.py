"""The one training loop.

It trains a group of experts in lockstep: every array has a leading expert axis, and since all randomness is addressed
by expert, a group of several gives the same bytes as one process for each. Everything that the next update depends on
is in `State`, which is written whole; a process that is killed at any moment and started again ends with the same bytes
as one that never stopped.

Shapes: E experts of the group, M body parameters, V bytes, H embedding width, A accumulated batches, B sequences,
T bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.cost import Ledger
from soma.errors import SomaError
from soma.estimators import spsa
from soma.estimators.head import decoder_gradient
from soma.forward.engine import Engine
from soma.models.lstm import initialise
from soma.probes import Probes
from soma.rng import Stream
from soma.runs import RunSpec
from soma.training.adam import Adam
from soma.training.checkpoint import ITERATES, load_tensors, save_tensors, tensor_name
from soma.training.plateau import PlateauState, observe, scheduled

log = logging.getLogger("soma.train")

HISTORY_COLUMNS = ("update", "expert", "train_loss", "expert_validation", "lr", "eps")


class Windows(Protocol):
    """Where training bytes come from."""

    def crops(self, ids: NDArray[Any], offsets: NDArray[Any], length: int) -> NDArray[np.uint8]:
        """Bytes [n, length + 1]: inputs and targets of `length` predictions from an offset inside each window."""


@dataclass(frozen=True)
class Shard:
    """Window ids of one expert."""

    train: NDArray[np.uint32]
    validation: NDArray[np.uint32]


@dataclass
class State:
    """Everything that the next update depends on, and what has been kept so far."""

    theta: Tensor
    """Bodies [E, M]."""
    head: Tensor
    """Tied heads [E, V, H]."""
    update: int = 0
    moments: dict[str, Tensor] = field(default_factory=dict)
    """Adam's m and v of the body, and of the head where it learns."""
    average: dict[str, Tensor] = field(default_factory=dict)
    """Exponential averages of body and head."""
    schedule: list[PlateauState] = field(default_factory=list)
    kept: dict[str, Tensor] = field(default_factory=dict)
    """Milestone weights by published name."""
    history: list[tuple[float, ...]] = field(default_factory=list)
    """Rows of HISTORY_COLUMNS."""
    ledger: Ledger = field(default_factory=Ledger)


class Interrupted(Exception):
    """The process was asked to stop and has saved its state."""


class Trainer:
    """One group of experts of one run."""

    def __init__(
        self,
        run: RunSpec,
        experts: range,
        windows: Windows,
        shards: list[Shard],
        engine: Engine,
        *,
        device: torch.device,
        start: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """
        Args:
            shards: one per expert of the group.
            start: body [M] and head [V, H] of the start run; None initialises at random.
        """
        self.run, self.experts, self.windows, self.shards, self.engine = run, experts, windows, shards, engine
        self.device = device
        s = run.settings
        self._probes = Stream.named(run.seed, run.kind, "probe")
        self._batches = Stream.named(run.seed, run.kind, "batch")
        self._body_rule = Adam(s.beta1, s.beta2, s.delta, s.weight_decay)
        self._head_rule = Adam(s.beta1, s.beta2, s.delta, 0.0)
        body, head = start if start is not None else initialise(run.model, Stream.named(run.seed, run.kind, "init"))
        group = len(experts)
        self.state = State(
            theta=body.to(device).repeat(group, 1),
            head=head.to(device).repeat(group, 1, 1) if run.trains_head else head.to(device).expand(group, -1, -1),
            schedule=[PlateauState()] * group,
        )
        for name, tensor in self._learned().items():
            self.state.moments |= {f"{name}.m": torch.zeros_like(tensor), f"{name}.v": torch.zeros_like(tensor)}
            self.state.average[name] = tensor.clone()

    def train(
        self,
        save: Callable[[State], None],
        *,
        save_every: float = 60.0,
        should_stop: Callable[[], bool] = lambda: False,
        report_every: float = 10.0,
    ) -> None:
        """Run to the end of the budget.

        Args:
            save: writes the resume state; called every `save_every` seconds and before an interruption.
            should_stop: polled after every update.

        Raises:
            Interrupted: after saving, if `should_stop` says so.
            SomaError: at a non-finite loss, naming the update.
        """
        state, plateau = self.state, self.run.settings.plateau
        saved = reported = time.monotonic()
        first, began = state.update, time.monotonic()
        while state.update < self.run.updates:
            with state.ledger.measure("update"):
                train_loss = self._step()
            u = state.update
            if u % plateau.every == 0 or u == self.run.updates:
                with state.ledger.measure("validation"):
                    self._validate(train_loss)
            if u in self.run.milestones:
                self._keep()
            now = time.monotonic()
            if should_stop():
                save(state)
                raise Interrupted(f"{self.run.id}: stopped after update {u} of {self.run.updates}; state saved")
            if now - saved >= save_every:
                with state.ledger.measure("checkpoint"):
                    save(state)
                saved = now
            if now - reported >= report_every or u == self.run.updates:
                self._report(train_loss, (u - first) / max(now - began, 1e-9))
                reported = now

    def _step(self) -> NDArray[np.float64]:
        """One update of every expert of the group; returns the mean perturbed loss [E]."""
        run, s, state = self.run, self.run.settings, self.state
        lr = [scheduled(s.plateau, p, s.lr) for p in state.schedule]
        eps = [scheduled(s.plateau, p, s.eps) for p in state.schedule]
        batches = [self._batch(a) for a in range(s.accumulation)]
        probes = [
            Probes(
                run.model,
                self._probes,
                s.probe,
                state.update,
                tuple(self.experts),
                range(a * s.n_pert, (a + 1) * s.n_pert),
            )
            for a in range(s.accumulation)
        ]
        estimate = spsa.estimate(self.engine, run.model, state.theta, state.head, batches, probes, eps)
        if not (np.isfinite(estimate.loss).all() and np.isfinite(estimate.gradient).all()):
            bad = [e for e, x in zip(self.experts, estimate.loss, strict=True) if not np.isfinite(x)]
            raise SomaError(
                f"{run.id}: the loss of expert {', '.join(map(str, bad or self.experts))} is not finite at update "
                f"{state.update + 1}; lower lr or eps."
            )
        # The head's gradient belongs to the iterate that the body's estimate was taken at.
        head_gradient = self._head_gradient(batches) if run.trains_head else None
        state.update += 1
        gradient = torch.from_numpy(estimate.gradient.astype(np.float32)).to(self.device)
        self._apply("body", state.theta, gradient, self._body_rule, torch.tensor(lr, device=self.device)[:, None])
        if head_gradient is not None:
            head_lr = [s.head_lr * x / s.lr for x in lr]
            rates = torch.tensor(head_lr, device=self.device)[:, None, None]
            self._apply("head", state.head, head_gradient, self._head_rule, rates)
        return estimate.loss

    def _apply(self, name: str, weights: Tensor, gradient: Tensor, rule: Adam, lr: Tensor) -> None:
        state = self.state
        rule.step(weights, gradient, state.moments[f"{name}.m"], state.moments[f"{name}.v"], state.update, lr)
        # Plain mean of the first iterates, exponential average from then on: no weight on the starting point.
        decay = min(self.run.settings.average, (state.update - 1) / state.update)
        state.average[name].mul_(decay).add_((1 - decay) * weights)

    def _batch(self, accumulation: int) -> NDArray[np.uint8]:
        """Random crops of random windows of each expert's shard; uint8 [E, B, T + 1]."""
        s, state = self.run.settings, self.state
        u = self._batches.uniform(
            2 * s.batch, direction=accumulation, update=state.update, expert=np.array(self.experts)
        )
        offsets = (u[:, 1::2] * (self.run.window - s.crop + 1)).astype(np.int64)
        return np.stack(
            [
                self.windows.crops(shard.train[(u[i, 0::2] * len(shard.train)).astype(np.int64)], offsets[i], s.crop)
                for i, shard in enumerate(self.shards)
            ]
        )

    def _head_gradient(self, batches: list[NDArray[np.uint8]]) -> Tensor:
        state = self.state
        total = torch.zeros_like(state.head)
        for tokens in batches:
            hidden = self.engine.hidden(self.run.model, state.theta, state.head, tokens)
            targets = torch.from_numpy(tokens[:, :, 1:]).to(self.device)
            for e in range(len(self.experts)):
                total[e] += decoder_gradient(hidden[e].flatten(0, 1), state.head[e], targets[e].flatten())
        return total / len(batches)

    def _validate(self, train_loss: NDArray[np.float64]) -> None:
        """Measure the expert-validation loss of the last iterate and move the schedule."""
        s, state, window = self.run.settings, self.state, self.run.window
        for i, (expert, shard) in enumerate(zip(self.experts, self.shards, strict=True)):
            ids = np.asarray(shard.validation[: s.plateau.windows])
            tokens = self.windows.crops(ids, np.zeros(len(ids), np.int64), window)[None]
            part = slice(i, i + 1)
            loss = self.engine.token_losses(self.run.model, state.theta[part], state.head[part], tokens).mean()
            lr, eps = (scheduled(s.plateau, state.schedule[i], x) for x in (s.lr, s.eps))
            state.history.append((state.update, expert, float(train_loss[i]), float(loss), lr, eps))
            state.schedule[i] = observe(s.plateau, state.schedule[i], state.update, float(loss))

    def _keep(self) -> None:
        state = self.state
        for i, expert in enumerate(self.experts):
            for name, weights in self._learned().items():
                versions = dict(zip(ITERATES, (weights, state.average[name]), strict=True))
                for iterate, tensor in versions.items():
                    state.kept[tensor_name(expert, state.update, iterate, name)] = tensor[i].cpu().clone()
        state.ledger.mark(state.update)

    def _learned(self) -> dict[str, Tensor]:
        learned = {"body": self.state.theta}
        return learned | {"head": self.state.head} if self.run.trains_head else learned

    def _report(self, train_loss: NDArray[np.float64], rate: float) -> None:
        state, total = self.state, self.run.updates
        validation = f" · expert validation {state.history[-1][3]:.4f}" if state.history else ""
        group = f"{self.experts[0]}" if len(self.experts) == 1 else f"{self.experts[0]}-{self.experts[-1]}"
        lr = scheduled(self.run.settings.plateau, state.schedule[0], self.run.settings.lr)
        log.info(
            f"{self.run.id} expert {group}: update {state.update}/{total} ({100 * state.update / total:.0f} %) · loss "
            f"{train_loss.mean():.4f}{validation} · lr {lr:.3g} · {rate:.1f} updates/s · "
            f"{_duration((total - state.update) / max(rate, 1e-9))} left"
        )


def save_state(path: Path, state: State, identity: str) -> None:
    """Write the resume state of the run that `identity` stands for."""
    tensors = {"theta": state.theta, "history": torch.tensor(state.history, dtype=torch.float64)}
    for group in ("moments", "average", "kept"):
        tensors |= {f"{group}/{name}": tensor for name, tensor in getattr(state, group).items()}
    if "head" in state.average:
        tensors["head"] = state.head
    for name in ("theta", "head"):
        if name in tensors and not torch.isfinite(tensors[name]).all():
            return  # the loss of the next update will say so; the state before stays
    facts = {
        "identity": identity,
        "update": state.update,
        "schedule": [asdict(p) for p in state.schedule],
        "ledger": state.ledger.to_json(),
    }
    save_tensors(path, tensors, facts)


def restore_state(path: Path, state: State, identity: str) -> bool:
    """Continue from a resume state, if there is a whole one of the same run; says what it did."""
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
    state.update = facts["update"]
    state.theta.copy_(tensors.pop("theta"))
    if "head" in tensors:
        state.head.copy_(tensors.pop("head"))
    state.history = [tuple(row) for row in tensors.pop("history").tolist()]
    state.schedule = [PlateauState(**p) for p in facts["schedule"]]
    state.ledger = Ledger.from_json(facts["ledger"])
    for key, tensor in tensors.items():
        group, name = key.split("/")
        if group == "kept":
            state.kept[name] = tensor
        else:
            getattr(state, group)[name].copy_(tensor)
    log.info(f"continuing after update {state.update}")
    return True


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
