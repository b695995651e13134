"""Settings of a run's training and of the machine it uses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from soma.config.base import Experts, Fraction, Model, Positive

FiniteDifference = Literal["central", "one-sided", "curvature", "alternating"]
"""Estimator of the slope of the loss along a direction (`soma.estimators.spsa`)."""


class Plateau(Model):
    patience: Positive = 1000
    """Updates without an improvement after which lr and eps are both multiplied by `factor`."""
    min_improvement: Annotated[float, Field(ge=0)] = 1e-8
    """Smallest decrease of the best expert-validation loss that counts as an improvement, nats per byte."""
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Factor for lr and eps."""
    floor: Annotated[float, Field(gt=0)] = 1e-5
    """Lower limit of lr and eps."""
    every: Positive = 100
    """Updates between two measurements of the expert-validation loss."""
    windows: Positive = 64
    """Number of expert-validation windows measured (always the first ones of the shard)."""


class Eggroll(Model):
    population: Annotated[int, Field(ge=2)] = 1 << 20
    """Population size; half as many antithetic pairs."""
    streams: Positive = 256
    """Streams of text among which the members are divided (the paper's batch)."""
    tokens: Positive = 100
    """Bytes per stream and update."""
    sigma: Annotated[float, Field(gt=0)] = 0.0625
    """Size of the perturbations (sigma_shift = 4)."""
    alpha: Fraction = 0.01
    """Significance level of the z-test: the share of parameters that move by chance."""
    step: Annotated[float, Field(gt=0)] = 0.01
    """Step size of a parameter that moves (float_step)."""
    alpha_halved_at: Fraction | None = None
    """Share of the budget after which alpha has halved, alpha_t = alpha / (1 + t / (share * updates)): the original's
    law, whose default falls from 1 to 1/16 and halves at 1/15; null: constant, as in the paper."""
    step_halved_at: Fraction | Literal["plateau"] | None = None
    """The same for `step`; or `plateau`: it falls with lr, by the schedule `plateau`."""
    state: Literal["carry", "reset", "pair_shared"] = "carry"
    """State from which a member starts an update: its own last state, zero, or the mean of its pair's."""
    nonlinearity: Literal["clip", "sigmoid_tanh"] = "clip"
    """The original's saturation (`clip`), or the usual gate functions."""
    separator: Annotated[int, Field(ge=0, le=255)] | None = 0
    """Input byte before which states are zeroed; null: never."""
    pair_chunk: Positive = 256
    """Pairs computed at once, to limit memory; no byte of a result depends on it with the engine `cpu`."""

    @model_serializer(mode="wrap")
    def _schedules_only_where_set(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write a schedule only if there is one, so that runs without it read as they did before schedules existed."""
        written: dict[str, Any] = plain(self)
        return {name: value for name, value in written.items() if not name.endswith("_halved_at") or value is not None}


class Training(Model):
    """Settings of a run; a recipe or an arm states only its changes."""

    method: Annotated[str, Field(pattern=r"^(spsa|bptt|eggroll|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")] = "spsa"
    """How an expert learns: differences along random directions (`spsa`), backpropagation through time (`bptt`),
    evolution strategies with rank-one perturbations (`eggroll`; a gated recurrent model, `depth` 6 in the paper), or
    a method of your own, `module:Class` (docs/extending.md)."""
    experts: Experts = 1
    """Number of experts (N); the label of a window's cluster has 16 bits."""
    width: Positive = 32
    """Width of a body (d)."""
    depth: Positive = 2
    """Residual blocks (D)."""
    embedding: Positive = 32
    """Width of the byte embedding, which is also the decoder (d_E)."""
    head: Literal["shared-frozen", "local"] = "local"
    """`local`: every expert trains its own tied head; `shared-frozen`: all use the seed run's head unchanged."""
    partition: Literal["clusters", "random", "iid"] = "clusters"
    """Training windows of an expert: its cluster, a random disjoint shard, or all windows."""
    loss: Literal["independent", "summed"] = "independent"
    """With `spsa`, the factor of an expert's probe: the difference of its own loss, or of the sum over all experts."""
    head_path: Literal["full", "decoder"] = "full"
    """With `bptt`, `full` includes the head's use as input embedding in a local head's gradient; `spsa` never does."""
    start: str = "seed"
    """`seed`: copy the seed run's weights; `random`: initialise at random; or the name of an arm of the same width,
    whose first experts are continued on their shards with their optimiser state (from its run with the same seed, or
    else with its first seed)."""
    n_pert: Positive = 64
    """Directions per batch, each used with both signs unless `difference` says otherwise."""
    batch: Positive = 64
    """Sequences per batch (B)."""
    accumulation: Positive = 1
    """Independent batches per update (A), each with its own n_pert directions."""
    crop: Annotated[int, Field(ge=1)] = 128
    """Bytes predicted per training sequence (T), at a random position in a window."""
    probe: Literal["sparse", "dense", "gaussian"] = "sparse"
    """Directions: `sparse` Rademacher probes zero half of the weights (but no gain), `dense` ones none; `gaussian` ones
    are standard normal in every weight."""
    difference: FiniteDifference = "central"
    """Slope along a direction and its forwards per batch: `central` (L+ - L-)/(2 eps), 2 n_pert; `one-sided` (L+ -
    L0)/eps, n_pert + 1; `curvature` (1.5-SPSA), central divided by max((abs(L+ - 2 L0 + L-)/eps^2)^0.1, 1), 2 n_pert +
    1; `alternating`, one-sided, with the same directions and the opposite sign in the next update, n_pert + 1."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Initial learning rate of the body."""
    eps: Annotated[float, Field(gt=0)] = 1e-3
    """Initial perturbation size."""
    head_lr: Annotated[float, Field(gt=0)] = 1e-2
    """Initial learning rate of a local head."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Adam's decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Adam's decay of the second moment."""
    delta: Annotated[float, Field(gt=0)] = 1e-8
    """Adam's denominator offset."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    """Coupled weight decay of the body."""
    average: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the exponential average of the iterates."""
    plateau: Plateau = Plateau()
    """Schedule of lr and eps."""
    eggroll: Eggroll = Eggroll()
    """Settings of `eggroll`, which has no lr, eps, batch or crop."""
    updates: Positive | None = None
    """Budget in updates per expert ..."""
    operations: Annotated[float, Field(gt=0)] | None = None
    """... or in arithmetic operations of the whole run (all experts); give exactly one of the two."""
    milestones: Annotated[tuple[Fraction, ...], Field(min_length=1)] = (0.1, 0.25, 0.5, 0.75, 1.0)
    """Shares of the budget at which a checkpoint is kept; the last is 1."""

    @model_validator(mode="after")
    def _ordered(self) -> Training:
        if list(self.milestones) != sorted(set(self.milestones)) or self.milestones[-1] != 1:
            raise ValueError("milestones must increase and end with 1")
        if self.updates is not None and self.operations is not None:
            raise ValueError("give the budget as `updates` or as `operations`, not both")
        if self.method == "eggroll":
            if self.experts > 1 or self.start != "random":
                raise ValueError("eggroll trains one model from a random start: set experts to 1 and start to random")
            if self.eggroll.population % (2 * self.eggroll.streams):
                raise ValueError("eggroll.population must be a whole number of pairs for each of eggroll.streams")
        return self


DEVICE = r"^(cpu|cuda(:\d+)?|mps)$"
"""Names of torch's devices that engines run on."""


class Compute(Model):
    engine: Literal["auto", "cpu", "triton", "torch", "reference"] = "auto"
    """Engine that computes the perturbed losses; they differ in speed and rounding; `auto` takes the best one
    available."""
    device: Annotated[str, Field(pattern=DEVICE)] = "cpu"
    """Torch device for training and evaluation: `cpu`, `cuda`, `cuda:1` or `mps`."""
    threads: Positive = 1
    """Threads of one training process."""
    workers: Positive = 1
    """Processes that compute the features of the training windows; starting one takes seconds."""
    parts: Positive = 1
    """Jobs that encode the training text, that compute the features of its windows, and that assign these to clusters;
    any number gives the same bytes, and after a stop only unfinished parts are repeated."""
    experts_per_job: Positive = 1
    """Experts that one process trains in lockstep."""
    rate: Annotated[float, Field(gt=0)] = 7.5e10
    """Operations per second of one training process, from which times are planned (default: one core of a CPU)."""
    ddpp: Positive = 1
    """Processes, at most, that divide the directions of one job (distributed perturbations; `bptt` has none)."""
    days: Annotated[float, Field(gt=0)] | None = None
    """Days that a job may take: one that would take longer at `rate` gets 2, 4, 8 ... processes, up to `ddpp`; null:
    every job gets `ddpp`."""
    node_workers: Positive = 8
    """Processes of one job on one node; a job with more takes several nodes, which needs Slurm."""
    wait: Positive = 1800
    """Seconds that a process waits for the others of its job: more than an update and a save take."""
    save_every: Annotated[float, Field(gt=0)] = 60.0
    """Seconds between two saves of the resume state."""
    legs: bool = True
    """Publish the resume state near the end of the first seed of each arm of Table 4, from which `soma replay`
    reproduces the published weights."""
