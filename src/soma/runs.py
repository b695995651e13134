"""Specification of a run, as data alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, ValidationError, model_serializer

from soma.config.base import Model, read_as
from soma.config.training import Training
from soma.errors import SomaError
from soma.models.count import BPTT_FORWARDS, ensemble_parameters, spsa_forwards, training_operations
from soma.models.gru_spec import GRUSpec
from soma.models.gru_spec import operations_per_token as gru_operations_per_token
from soma.models.spec import LSTMSpec

Iterate = Literal["last", "average"]
"""The last iterate itself, or the exponential average of the iterates."""
ITERATES: tuple[Iterate, ...] = ("last", "average")
Family = Literal["lstm", "gru", "module"]
"""Kind of a run's models."""


class RunSpec(Model):
    """One training run, described by data alone; a training job reads this and nothing else."""

    id: str
    kind: Literal["seed", "arm", "continuation"]
    """A seed run starts others; tables show an arm's runs; a continuation continues an arm's run."""
    seed: int
    """Root of the run's random streams. Runs of one kind and seed draw the same batches and probes."""
    start: str | None
    """Run whose final weights the experts copy: from a seed run, its only expert; from a continued run, its first
    experts, each with its optimiser state; null: random initialisation."""
    head_from: str | None = None
    """Run whose final head all experts share; null: local heads, or the head as initialised."""
    keep_memory: bool = False
    """True to publish the optimiser state, since other runs continue this one."""
    may_fail: bool = False
    """True to count divergence as a result instead of raising."""
    shards: str
    """Folder of the training window ids, under shards/."""
    subset: float = 1.0
    """Share of a shard's training windows that is used."""
    window: int
    """Bytes per window (W)."""
    settings: Training
    """Everything else, with the budget resolved to updates."""
    milestones: tuple[int, ...]
    """Updates after which a checkpoint is kept; the last equals the budget."""
    leg: int | None = None
    """Update whose resume state is published, from which the rest of the run can be replayed; null: none."""

    @model_serializer(mode="wrap")
    def _leg_only_where_there_is_one(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the leg only if there is one, so that runs without it read as they did before legs existed."""
        written: dict[str, Any] = plain(self)
        return {name: value for name, value in written.items() if name != "leg" or value is not None}

    @property
    def experts(self) -> int:
        return self.settings.experts

    @property
    def updates(self) -> int:
        return self.milestones[-1]

    @property
    def clusters(self) -> int | None:
        """Number of clusters that the experts' shards come from; None for shards without clusters."""
        kind, _, count = self.shards.partition("-n")
        return int(count) if kind == "clusters" else None

    def shard(self, expert: int) -> int:
        """Return the shard that an expert trains on: its own, or the only one if experts share all windows."""
        return 0 if self.settings.partition == "iid" else expert

    @property
    def model(self) -> LSTMSpec:
        """Sizes of an LSTM expert."""
        return model_spec(self.settings)

    @property
    def gru(self) -> GRUSpec:
        """Sizes of EGGROLL's model."""
        return GRUSpec(self.settings.width, self.settings.depth)

    @property
    def trains_head(self) -> bool:
        """True if experts have their own heads; those of EGGROLL's model and of modules are part of their bodies."""
        return self.settings.head == "local" and self.family == "lstm"

    @property
    def family(self) -> Family:
        return family_of(self.settings)

    @property
    def body_size(self) -> int:
        """Parameters of one expert without its head."""
        if self.family == "module":
            size: int = own_method(self.settings.method).parameters(self.settings)
            return size
        return self.gru.size if self.family == "gru" else self.model.size

    @property
    def parameters(self) -> int:
        """Parameters of the whole ensemble."""
        if self.family != "lstm":
            return self.experts * self.body_size
        return ensemble_parameters(self.model, self.experts, shared_head=not self.trains_head)

    def operations(self, updates: int) -> int:
        """Count the arithmetic operations of the whole run after `updates` updates of every expert."""
        return operations_of(self.settings, updates)


def own_method(method: str) -> Any:
    """Return the class of a method of the user's own, named `module:Class`; None for a method of the package.

    Raises:
        SomaError: if Python finds no such class.
    """
    return _imported(method) if ":" in method else None


@cache
def _imported(place: str) -> Any:
    try:
        learner = resolve_name(place)
    except (ImportError, AttributeError) as error:
        raise SomaError(
            f"the method {place} cannot be imported ({error}); put the folder of its module into PYTHONPATH."
        ) from None
    if not hasattr(learner, "family"):
        raise SomaError(
            f"the method {place} is no learner; derive it from soma.training.learner.LSTMLearner or "
            "soma.training.module.ModuleLearner."
        )
    return learner


def family_of(settings: Training) -> Family:
    """Return the kind of a run's models: LSTM experts, EGGROLL's GRU, or torch modules of the user's own."""
    if own := own_method(settings.method):
        family: Family = own.family
        return family
    return "gru" if settings.method == "eggroll" else "lstm"


def part_experts(part: str) -> range:
    """Return the experts of a part, given its name."""
    first, last = part.split("-")
    return range(int(first), int(last) + 1)


def model_spec(settings: Training) -> LSTMSpec:
    return LSTMSpec(settings.width, settings.depth, settings.embedding)


def operations_of(settings: Training, updates: int) -> int:
    """Count the arithmetic operations of all experts for `updates` updates of each."""
    own = own_method(settings.method)
    if family_of(settings) == "module":
        counted: int = own.operations(settings)
        return counted * settings.experts * updates
    if settings.method == "eggroll":
        member_tokens = settings.eggroll.population * settings.eggroll.tokens
        return member_tokens * gru_operations_per_token(GRUSpec(settings.width, settings.depth)) * updates
    return training_operations(
        model_spec(settings),
        forwards=own.forwards(settings)
        if own
        else {"spsa": spsa_forwards(settings.n_pert, settings.difference), "bptt": BPTT_FORWARDS}[settings.method],
        batch=settings.batch,
        accumulation=settings.accumulation,
        crop=settings.crop,
        experts=settings.experts,
        updates=updates,
    )


def recorded(part: Path) -> RunSpec:
    """Return the run that a part's `run.json` records.

    Raises:
        SomaError: if the file is missing, damaged or of another version.
    """
    record = read_as(dict[str, Any], part / "run.json")
    try:
        return RunSpec.model_validate(record.get("run"))
    except ValidationError:
        raise SomaError(f"{part / 'run.json'} is not a run record that this version can read; pull it again.") from None
