"""Settings of the products: the arms in every table and figure, and the parameters of measurements.

Arms are given by name; soma.config.campaign checks that they are described. Products with `variants` derive arms from
one by changing a setting, so that a grid need not be written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from soma.config.base import Experts, Model, Positive, Seeds

Arms = Annotated[tuple[str, ...], Field(min_length=1)]
Counts = Annotated[tuple[Positive, ...], Field(min_length=1)]
PositiveNumber = Annotated[float, Field(gt=0)]
Kind = Literal["monolith", "ensemble"]
"""A single model, or several experts."""

T = TypeVar("T")
LEFT_OUT: Any = None
"""In the place of a product that a campaign does not have."""
if TYPE_CHECKING:
    Given = Annotated[T, "given"]
else:
    Given = T | None
"""A product that may be left out. What reads it runs only where it is given, so type checkers see it as given."""


class FixedSize(Model):
    """Figure 1, Tables 2, 3, 4 and 9, claims C1a to C2b: arms of equal total size."""

    soma: str
    """The arm that the claim is about."""
    against: tuple[str, ...]
    """Arms that it is claimed to beat."""
    also: tuple[str, ...] = ()
    """Further arms in the same tables and figure."""

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.soma, *self.against, *self.also)


class Controls(Model):
    """Beyond the paper: other possible explanations of the comparison at equal total size."""

    random: str
    """The claim's arm on random shards (B1)."""
    sizes: Arms
    """Monoliths at the same number of operations, from small to large (B7); those as wide as an expert serve B2."""

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.random, *self.sizes)


class Backpropagation(Model):
    """Table 5, claim C16: zeroth-order arms against backpropagation, on ensemble validation."""

    pairs: Annotated[tuple[tuple[str, str], ...], Field(min_length=1)]
    """A zeroth-order arm and a `bptt` arm with the same experts, for each N."""
    operations: Annotated[tuple[PositiveNumber, ...], Field(min_length=1)]
    """Budgets at which to compare both; losses between two milestones are interpolated."""

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(arm for pair in self.pairs for arm in pair)


class Tuning(Model):
    """Tables 6 and 7, claim C3: the same search for both methods, chosen on ensemble validation, then tested once."""

    soma: str
    """Arm whose lr and eps are searched ..."""
    spsa: str
    """... and the arm it is compared with."""
    settings: Annotated[tuple[tuple[float, float], ...], Field(min_length=1)]
    """Pairs of lr and eps, each run with every seed and the arm's own budget."""
    seeds: Annotated[Seeds, Field(min_length=2)]
    """Seeds of every setting."""
    each_seed: bool = False
    """True to choose a setting for each seed by itself, as in the paper; else one by the mean over seeds."""
    serves: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Arms that have the lr and eps chosen for `soma` or `spsa`; the summary `rates-of-arms` checks it."""

    @model_validator(mode="after")
    def _serves_for_its_arms(self) -> Tuning:
        if unknown := self.serves.keys() - {*self.bases}:
            raise ValueError(f"serves names `{min(unknown)}`, which is neither soma nor spsa")
        return self

    @property
    def bases(self) -> tuple[str, ...]:
        return (self.soma, self.spsa)

    def variants(self, base: str) -> dict[str, dict[str, Any]]:
        """Return the names of the arms derived from a base arm, and the changes in each."""
        settings = [{"lr": lr, "eps": eps} for lr, eps in self.settings]
        return {variant(base, setting): {**setting, "seeds": self.seeds} for setting in settings}


class Search(Model):
    """Beyond the paper, by name: a search for settings of arms on ensemble validation, copied here when chosen.

    Every setting is a mapping of keys of an arm, such as `{lr: 2.5e-3}` or `{eggroll: {population: 256, alpha: 0.3}}`.
    """

    arm: str
    """Arm whose settings are changed; it need not be an arm of another product."""
    serves: Arms
    """Arms that must have the chosen values; the summary `rates-of-arms` says which do not."""
    settings: Annotated[tuple[dict[str, Any], ...], Field(min_length=1)]
    """Candidates, each run with every seed; all state the same keys."""
    operations: PositiveNumber
    """Budget of every run."""
    seeds: Seeds = (0,)
    """Seeds of every setting."""

    @model_validator(mode="after")
    def _alike(self) -> Search:
        keys = [flat(setting).keys() for setting in self.settings]
        if any(other != keys[0] for other in keys):
            raise ValueError("every setting must state the same keys")
        if len(self.variants) != len(self.settings):
            raise ValueError("a setting is stated twice")
        if taken := keys[0] & {"updates", "operations", "seeds", "milestones"}:
            raise ValueError(f"a setting must not state `{min(taken)}`, which is the same for all settings")
        return self

    @property
    def variants(self) -> dict[str, dict[str, Any]]:
        """Return the names of the derived arms, and the changes in each."""
        fixed = {"operations": self.operations, "updates": None, "milestones": (1.0,), "seeds": self.seeds}
        return {variant(self.arm, flat(setting)): {**setting, **fixed} for setting in self.settings}


_SHORT = {
    "population": "p",
    "alpha": "a",
    "step": "s",
    "tokens": "t",
    "alpha_halved_at": "ah",
    "step_halved_at": "sh",
    "head_lr": "head",
}
"""Short names of the keys that a search changes, for the names of its arms; others stand in full."""


def flat(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a setting by their innermost key, `{eggroll: {alpha: 0.3}}` as `{alpha: 0.3}`."""
    out: dict[str, Any] = {}
    for key, value in setting.items():
        out |= flat(value) if isinstance(value, Mapping) else {key: value}
    return out


def variant(base: str, values: Mapping[str, Any]) -> str:
    """Return the name of an arm derived from `base`, which states every value that is set."""
    ordered = sorted(values, key=lambda key: [*_SHORT].index(key) if key in _SHORT else -1)
    texts = {key: f"{values[key]:g}" if isinstance(values[key], float) else str(values[key]) for key in ordered}
    return "-".join([base, *(f"{_SHORT.get(key, key)}{texts[key]}" for key in ordered if values[key] is not None)])


class Width(Model):
    """Another width of EGGROLL's model, with its budget."""

    width: Positive
    """Width of the GRU."""
    updates: Positive
    """Updates of the run; the milestone with the lowest ensemble-validation loss is shown."""


class Widths(Model):
    """EGGROLL at other widths, each at its lowest ensemble-validation loss (Appendix I)."""

    arm: str
    """The `eggroll` arm whose width and budget are changed."""
    settings: tuple[Width, ...] = ()
    """The other widths; none are trained if there are none."""
    seeds: Seeds = (0,)
    """Seeds of every width."""

    @property
    def variants(self) -> dict[str, dict[str, Any]]:
        """Return the names of the derived arms and the changes in each."""
        return {
            f"{self.arm}-d{s.width}-u{s.updates}": {
                "width": s.width, "updates": s.updates, "operations": None, "seeds": self.seeds
            }
            for s in self.settings
        }  # fmt: skip


class Paired(Model):
    """Figure 4, claim C5: independent and summed losses compared, with the same start, batches and probes."""

    early: tuple[str, str]
    """Arms with independent and with summed losses, from the seed run."""
    late: tuple[str, str]
    """The same two as continuations of a trained arm."""
    probes: Annotated[int, Field(ge=2)] = 128
    """Single probes of the variance ratio, at the start and the end of every run."""
    batches: Positive = 2
    """Fixed batches of training text that it is measured on."""
    batch: Positive = 64
    """Sequences in such a batch, for each expert."""

    @property
    def arms(self) -> tuple[str, ...]:
        return (*self.early, *self.late)


class Allocation(Model):
    """Table 11, claim C14: continuations of one arm at equal operations with different splits of n_pert and batch."""

    arms: Annotated[tuple[str, ...], Field(min_length=2)]
    """The continuations, each compared with every other."""
    margin: PositiveNumber = 0.00006
    """Test losses closer than this (nats per byte) count as equal; the default is the spread that the paper reports."""


class Sweep(Model):
    """Figures 7, 8, 13 and 14, Table 10, claims C8 and C15: one setting at a time, on ensemble validation."""

    arm: str
    """Base arm, whose number of experts is used in the other two sweeps."""
    experts: Annotated[tuple[Experts, ...], Field(min_length=1)]
    """Values of N; every expert has the arm's width and updates."""
    n_pert: Counts
    """Numbers of directions."""
    batch: Counts
    """Sequences per update; above the arm's batch, batches are accumulated, each with its own directions."""
    seeds: Seeds | None = None
    """Seeds of the runs with other N, which cost least and differ least; null: the arm's, as for all other runs."""
    operations: Annotated[tuple[PositiveNumber, ...], Field(min_length=1)]
    """Budgets of Table 10."""
    target: PositiveNumber | None = None
    """Ensemble validation loss (nats per byte) whose cost is compared; by default the median of lowest losses."""

    def variants(self, base: Any) -> dict[str, dict[str, Any]]:
        """Return the names of the derived arms and the changes in each; `base` is the arm."""
        out: dict[str, dict[str, Any]] = {}
        for n in self.experts:
            out[f"{self.arm}-n{n}"] = {"experts": n, "k": None, "seeds": self.seeds or base.seeds}
        for n_pert in self.n_pert:
            out[f"{self.arm}-p{n_pert}"] = {"n_pert": n_pert}
        for batch in self.batch:
            accumulation = max(1, batch // base.batch)
            out[f"{self.arm}-b{batch}"] = {"batch": batch // accumulation, "accumulation": accumulation}
        return out


class Ablation(Model):
    """Figure 9, claim C12: partition, start and head, under backpropagation."""

    base: str
    """Semantic clusters, start from the seed run, full tied head."""
    partition: Arms
    """The base arm on other shards."""
    start: Arms
    """The base arm from another start."""
    head: Arms
    """The base arm with another treatment of the head."""

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.base, *self.partition, *self.start, *self.head)


class Variance(Model):
    """Figure 10, claim C6: relative variance of the gradient estimate at saved checkpoints."""

    arms: Arms
    """SPSA arms of equal total size and different N."""
    probes: Annotated[int, Field(ge=2)] = 128
    """Number of single probes."""
    chunks: Positive = 2
    """Fixed chunks of expert-validation text, one batch each."""
    batch: Positive = 16
    """Sequences per chunk."""
    n_pert: Counts = (1, 4, 16, 64)
    """Numbers of directions whose mean is measured; each divides `probes`."""

    @model_validator(mode="after")
    def _divides(self) -> Variance:
        if any(self.probes % n for n in self.n_pert):
            raise ValueError(f"every n_pert must divide probes ({self.probes})")
        return self


class Objective(Model):
    """Figure 11, claims C4 and C13: a fixed separable objective, and the split of directions and sequences."""

    arm: str
    """A trained SPSA arm; four of its experts (or all, if it has fewer) are used."""
    sets: Annotated[int, Field(ge=2)] = 32
    """Independent sets of probes."""
    n_pert: Positive = 64
    """Directions per set."""
    batch: Positive = 16
    """Sequences in each expert's fixed batch."""
    coordinates: Positive = 128
    """Random coordinates of each expert that are perturbed to study the split."""
    pool: Positive = 32
    """Sequences from which batches are drawn."""
    product: Positive = 256
    """Product of n_pert and B."""
    probes: Positive = 1024
    """Directions measured on the whole pool."""
    repeats: Positive = 256
    """Estimates assembled from them for every split."""

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.arm,)


class Reference(Model):
    """Figure 5, Table 8, claim C7: error of the estimate against a backpropagation reference."""

    arms: Arms
    """SPSA arms of equal total size and different N."""
    sequences: Positive = 512
    """Sequences in each of the two disjoint reference batches, per expert."""
    settings: Annotated[tuple[tuple[Positive, Positive], ...], Field(min_length=1)]
    """Pairs of n_pert and B; the arms are compared at the first, and the fewest experts are measured at all."""
    repeats: Annotated[int, Field(ge=2)] = 8
    """Estimates per setting."""


class Active(Model):
    """Figures 16 and 17, claims C10 and C11: how many experts to average, and which pairs are complementary."""

    arms: Arms
    """Arms whose loss is measured for every number of active experts; arms that the sweep derives may be among them."""
    pairs: str
    """The arm among them whose pairs of experts are compared; it needs at least three experts."""

    @model_validator(mode="after")
    def _listed(self) -> Active:
        if self.pairs not in self.arms:
            raise ValueError(f"pairs is `{self.pairs}`, which is not one of arms")
        return self


class Inference(Model):
    """Tables 12 and 13, Figures 6 and 15, claim C9: throughput of complete requests."""

    arms: Arms
    """Trained arms of equal total size."""
    many: str
    """Arm with many experts that is claimed to be fast ..."""
    few: str
    """... and the arm with few."""
    requests: Positive = 256
    """Requests per batch."""
    requests_of: dict[str, Positive] = Field(default_factory=dict)
    """Other numbers of requests, by arm."""
    repeats: Positive = 7
    """Timed repeats; the median is reported."""
    warmups: Positive = 2
    """Untimed repeats before them."""
    device_seconds: PositiveNumber | None = None
    """Aggregate device time of training at which Figure 15 compares the arms; null: the largest that all have spent."""

    @model_validator(mode="after")
    def _listed(self) -> Inference:
        for name in (self.many, self.few, *self.requests_of):
            if name not in self.arms:
                raise ValueError(f"`{name}` is not one of arms")
        return self


class Estimators(Model):
    """Beyond the paper: estimators from the literature at equal operations, by loss reached and by variance."""

    arms: Arms
    """SPSA arms that differ only in `probe` and `difference`; the first is the paper's."""
    repeats: Annotated[int, Field(ge=2)] = 32
    """Independent estimates per variance."""


class PrecisionOfDifferences(Model):
    """Beyond the paper: the error of a finite difference as a function of eps, for coarser matrix products (B6)."""

    arm: str
    """Arm whose first run is measured, at its initial and trained weights; it must train its head."""
    eps: Annotated[tuple[PositiveNumber, ...], Field(min_length=1)] = (1e-2, 1e-3, 1e-4, 1e-5)
    """Perturbation sizes."""
    directions: Positive = 16
    """Directions in the batch."""
    batch: Positive = 16
    """Sequences in the batch."""

    @property
    def arms(self) -> tuple[str, ...]:
        return (self.arm,)


class Walk(Model):
    """Beyond the paper: are an `eggroll` arm's weights, and its last updates, more than noise?"""

    arms: Arms
    """`eggroll` arms; every seed is measured at its end."""
    updates: Annotated[int, Field(ge=2)] = 32
    """Updates of the trained weights that are measured and not taken."""


class Horizon(Model):
    """Beyond the paper: longer state. Trained arms with state carried over windows, and a synthetic early event that
    a small cell learns to remember, by SPSA and by backpropagation.
    """

    arms: Arms
    """`spsa` or `bptt` arms, evaluated at their ends."""
    windows: Counts = (1, 4, 16)
    """Windows over which state is carried; each divides the largest."""
    stretches: Positive = 256
    """Stretches of validation documents, each as long as the largest number of windows."""
    distances: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)] = (16, 128, 1024, 8192)
    """Bytes from the event to the byte that it decides."""
    width: Positive = 8
    """Width of the cell that learns this."""
    depth: Positive = 1
    """Its residual blocks."""
    embedding: Positive = 8
    """Width of its byte embedding."""
    operations: PositiveNumber = 2e10
    """Budget of every run, of the cell's body."""
    rates: Annotated[tuple[PositiveNumber, ...], Field(min_length=1)] = (1e-2, 3e-2)
    """Rates that both methods try."""
    eps: PositiveNumber = 1e-2
    """Perturbation size of SPSA."""
    n_pert: Positive = 16
    """Directions of an update of SPSA."""
    pairs: Positive = 4
    """Pairs of sequences in a batch, at least."""
    tested: Positive = 128
    """Fresh pairs on which a cell is tested."""
    seeds: Seeds = (0, 1, 2)
    """Seeds of every distance and method."""

    @model_validator(mode="after")
    def _divides(self) -> Horizon:
        if any(max(self.windows) % count for count in self.windows):
            raise ValueError(f"every number of windows must divide the largest, {max(self.windows)}")
        return self


class Combiner(Model):
    """Beyond the paper: a gate over the predictions of frozen experts, against their plain mean."""

    arms: Arms
    """`spsa` or `bptt` arms of several experts, at their ends."""
    windows: Positive = 256
    """Windows of expert validation that a gate learns from, at most."""
    updates: Positive = 200
    """Updates of a gate, each on all of these windows."""
    lr: PositiveNumber = 0.02
    """Rate of both methods."""
    eps: PositiveNumber = 1e-2
    """Perturbation size of SPSA."""
    n_pert: Positive = 4
    """Directions of an update of SPSA."""


class Charged(Model):
    """Beyond the paper: arms under one total of operations that pays for seed run, routing, training and validation."""

    arms: Arms
    """`spsa` or `bptt` arms that start from a seed run or at random; the first is compared with all others."""
    operations: Annotated[tuple[PositiveNumber, ...], Field(min_length=1)]
    """Totals."""


class Frontier(Model):
    """Beyond the paper: test loss against operations for single models and ensembles of several sizes, which model is
    best under a budget, and whether that changes as budgets grow.
    """

    monoliths: Annotated[tuple[str, ...], Field(min_length=2)]
    """Single models from small to large; three sizes or more give a fit."""
    ensembles: Arms
    """Ensembles of several N, each of one size or more; those on random shards beside those on clusters."""
    budgets: Annotated[tuple[PositiveNumber, ...], Field(min_length=2)]
    """Operations at which all are compared, ascending; losses between two milestones are interpolated."""
    larger: PositiveNumber
    """Operations above the budgets to which the fits are extrapolated."""
    recorded: dict[Kind, tuple[PositiveNumber, PositiveNumber, PositiveNumber]] = Field(default_factory=dict)
    """Predicted loss at `larger` and the ends of its interval, copied from the table before `outcomes` ran."""
    outcomes: dict[Kind, str] = Field(default_factory=dict)
    """Arms of `larger` operations that test the prediction of each kind; they take no part in the fits."""
    schedules: dict[str, str] = Field(default_factory=dict)
    """Arms that repeat another one with a smaller budget and the schedule of that budget, by the repeated arm."""

    @model_validator(mode="after")
    def _ascends(self) -> Frontier:
        if list(self.budgets) != sorted(set(self.budgets)) or self.larger <= self.budgets[-1]:
            raise ValueError("budgets must increase and stay below `larger`")
        if unknown := self.schedules.keys() - {*self.compared}:
            raise ValueError(f"schedules repeats `{min(unknown)}`, which is neither among monoliths nor ensembles")
        return self

    @property
    def kinds(self) -> dict[Kind, tuple[str, ...]]:
        """Arms of which the frontier consists, by their kind."""
        return {"monolith": self.monoliths, "ensemble": self.ensembles}

    @property
    def compared(self) -> tuple[str, ...]:
        return (*self.monoliths, *self.ensembles)

    @property
    def arms(self) -> tuple[str, ...]:
        return (*self.compared, *self.outcomes.values(), *self.schedules.values())


class Compared(Model):
    """One side of a difference: an arm at the end of its budget."""

    arm: str
    """Its name."""
    iterate: Literal["last", "average"] = "last"
    """Its last weights, or the average of its iterates."""
    nearest: bool = False
    """The nearest expert alone instead of the arm's k."""

    @property
    def name(self) -> str:
        words = (self.arm, "averaged iterate" * (self.iterate == "average"), "nearest expert alone" * self.nearest)
        return ", ".join(filter(None, words))


class Pair(Model):
    """A difference: the loss of one arm minus that of another, over the seeds that both have."""

    ours: Compared
    theirs: Compared


class Statement(Model):
    """A statement about trained arms, as differences that are negative if it holds."""

    statement: str
    """What is tested, in a sentence."""
    falsified_by: str
    """What would show that it is false, in words."""
    zero: bool = False
    """True if the statement is that nothing differs; an interval without zero on either side then falsifies it."""
    differences: Annotated[tuple[Pair, ...], Field(min_length=1)]
    """Losses that are compared, on test."""


class Study(Model):
    """Beyond the paper: a study of one's own, as statements that are written before their runs are made."""

    statements: Annotated[dict[str, Statement], Field(min_length=1)]
    """Statements by a short name, such as M1."""

    @property
    def arms(self) -> tuple[str, ...]:
        sides = (s for each in self.statements.values() for pair in each.differences for s in (pair.ours, pair.theirs))
        return tuple(dict.fromkeys(side.arm for side in sides))


class Products(Model):
    """What a campaign shows: `fixed_size` always, of the others those that are given; `null` in an overlay leaves one
    out. What needs a product that is left out is not planned, shown or judged (`catalogue.Catalogue`).
    """

    fixed_size: FixedSize
    """The comparison at equal total size."""
    controls: Given[Controls] = LEFT_OUT
    """Other possible explanations of it."""
    backpropagation: Given[Backpropagation] = LEFT_OUT
    """Zeroth-order training against backpropagation."""
    tuning: Given[Tuning] = LEFT_OUT
    """The equal search over lr and eps."""
    rates: dict[Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]*$")], Search] = Field(default_factory=dict)
    """Searches for settings of arms, by name; those of an overlay take the place of all others."""
    widths: Given[Widths] = LEFT_OUT
    """EGGROLL at other widths."""
    paired: Given[Paired] = LEFT_OUT
    """Independent and summed losses compared."""
    allocation: Given[Allocation] = LEFT_OUT
    """Continuations with different splits."""
    sweep: Given[Sweep] = LEFT_OUT
    """N, n_pert and B, one at a time."""
    ablation: Given[Ablation] = LEFT_OUT
    """Partition, start and head."""
    variance: Given[Variance] = LEFT_OUT
    """Variance of the gradient estimate."""
    objective: Given[Objective] = LEFT_OUT
    """A fixed separable objective."""
    reference: Given[Reference] = LEFT_OUT
    """Error against backpropagation."""
    active: Given[Active] = LEFT_OUT
    """Number of active experts, and pairs."""
    inference: Given[Inference] = LEFT_OUT
    """Throughput of inference."""
    estimators: Given[Estimators] = LEFT_OUT
    """Estimators at equal operations."""
    precision: Given[PrecisionOfDifferences] = LEFT_OUT
    """The precision of the finite difference."""
    walk: Given[Walk] = LEFT_OUT
    """EGGROLL's weights against a random walk."""
    horizon: Given[Horizon] = LEFT_OUT
    """Longer state."""
    combiner: Given[Combiner] = LEFT_OUT
    """A learned gate over experts."""
    charged: Given[Charged] = LEFT_OUT
    """Totals that pay for everything."""
    frontier: Given[Frontier] = LEFT_OUT
    """Which model is best under a budget."""
    study: Given[Study] = LEFT_OUT
    """Statements of one's own."""

    @property
    def given(self) -> dict[str, Any]:
        """Every product that the campaign has, by name."""
        return {name: product for name, product in self if product is not None}

    @property
    def arms(self) -> list[str]:
        """Every configured arm that a product runs unchanged, once."""
        products = [product for product in self.given.values() if hasattr(product, "arms")]
        return list(dict.fromkeys(arm for product in products for arm in product.arms))

    @property
    def bases(self) -> list[str]:
        """Every arm from which a product derives others."""
        given = self.given
        tuned = self.tuning.bases if "tuning" in given else ()
        derived = [given[name].arm for name in ("sweep", "widths") if name in given]
        return [*tuned, *derived, *(search.arm for search in self.rates.values())]
