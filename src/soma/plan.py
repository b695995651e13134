"""From a configuration to the runs that its products need: who is trained, on what, from what, for how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from soma.config import Arm, Config, SeedRun
from soma.errors import SomaError
from soma.runs import RunSpec, operations_of
from soma.settings.training import Training


@dataclass(frozen=True)
class Plan:
    """Every run of a campaign and how it is cut into jobs."""

    config: Config
    arms: dict[str, Arm]
    """The arms that products run: those of the configuration, and the variants of the tuning."""
    runs: dict[str, RunSpec]

    @cached_property
    def arm_runs(self) -> dict[str, list[RunSpec]]:
        """Runs of each arm, in the order of its seeds."""
        return {name: [self.runs[run_id(name, seed)] for seed in arm.seeds] for name, arm in self.arms.items()}

    @cached_property
    def arm_of(self) -> dict[str, str]:
        """The arm of every run that is not a seed run."""
        return {run.id: arm for arm, runs in self.arm_runs.items() for run in runs}

    def active_counts(self, arm: str) -> list[int]:
        """Numbers of active experts that are evaluated: the nearest alone, and the arm's k."""
        return sorted({1, self.arms[arm].active})

    @cached_property
    def expert_counts(self) -> list[int]:
        """Every N whose runs need clusters of their own."""
        return sorted({int(r.shards.removeprefix("clusters-n")) for r in self.runs.values() if "clusters" in r.shards})

    def parts(self, run: RunSpec) -> list[str]:
        """Names of the groups of experts that one job trains in lockstep, `first-last`."""
        # A summed loss needs the losses of all experts in one place.
        per_job = run.experts if run.settings.loss == "summed" else self.config.compute.experts_per_job
        firsts = range(0, run.experts, per_job)
        return [f"{a:03d}-{min(a + per_job, run.experts) - 1:03d}" for a in firsts]


def run_id(arm: str, seed: int) -> str:
    return f"{arm}-s{seed}"


def make_plan(config: Config) -> Plan:
    """The runs that the configured products need, seed runs included.

    Raises:
        SomaError: if two arms describe the same run.
    """
    runs: dict[str, RunSpec] = {}
    described: dict[str, str] = {}
    arms = _arms(config)
    for name, arm in arms.items():
        for seed in arm.seeds:
            spec = _arm_run(config, name, arm, seed)
            runs[spec.id] = spec
            content = spec.model_copy(update={"id": ""}).model_dump_json()
            if described.setdefault(content, name) != name:
                raise SomaError(
                    f"the arms `{described[content]}` and `{name}` describe the same run; keep one and name it twice."
                )
            if spec.start is not None:
                runs[spec.start] = _seed_run(config, arm, seed)
    return Plan(config, arms, dict(sorted(runs.items())))


def settings_files(plan: Plan) -> dict[str, Any]:
    """What each rule reads, as JSON: one entry per rule or run, so that an edit reruns what it touches and no more."""
    config = plan.config
    data = config.data.model_dump(mode="json")
    by_position = {r: {k: data[r][k] for k in ("source", "every", "at")} for r in ("validation", "test")}
    encode: dict[str, Any] = {
        role: {"train": data["train"], **by_position, "separator": data["separator"]}
        for role in ("train", "validation", "test")
    }
    encode["external"] = {"external": {"source": data["external"]["source"]}, "separator": data["separator"]}
    shape = {k: data[k] for k in ("window", "prefix", "expert_validation")}
    sets = {
        role: {"seed": config.seed, "data": {**shape, **by_position, role: data[role]}}
        for role in ("validation", "test", "external")
    }
    windows = {"seed": config.seed, "window": config.data.window}
    routing = config.routing.model_dump(mode="json")
    features = {k: routing[k] for k in ("features", "min_df", "svd", "sample")}
    # Where and how fast it ran is no part of what a table shows; how a run is cut into jobs is where its files lie.
    compute = {"experts_per_job": config.compute.experts_per_job}
    return {
        "source-train": {"source": data["train"]},
        "source-external": {"source": data["external"]["source"]},
        **{f"source-{r}": {"source": s} for r, v in by_position.items() if (s := v["source"]) is not None},
        **{f"encode-{role}": value for role, value in encode.items()},
        **{f"set-{role}": value for role, value in sets.items()},
        "features": {**windows, "routing": features},
        "vectors": windows,
        "router": {"seed": config.seed, "routing": routing},
        "assign": {**windows, "prefix": config.data.prefix},
        "shard": {**windows, "expert_validation": config.data.expert_validation},
        **{f"run-{run.id}": run.model_dump(mode="json") for run in plan.runs.values()},
        "precision": {
            "run": plan.arm_runs[config.products.precision.arm][0].model_dump(mode="json"),
            **config.products.precision.model_dump(mode="json", exclude={"arm"}),
        },
        "compute": config.compute.model_dump(mode="json"),
        "campaign": config.model_dump(mode="json", exclude={"compute"}) | {"compute": compute},
    }


def _arms(config: Config) -> dict[str, Arm]:
    """Every arm that a product runs, by name."""
    arms = {name: config.arms[name] for name in config.products.arms}
    tuning = config.products.tuning
    for base in (tuning.soma, tuning.spsa):
        for name, (lr, eps) in tuning.variants(base).items():
            arms[name] = config.arms[base].model_copy(update={"lr": lr, "eps": eps, "seeds": tuning.seeds})
    return arms


def _arm_run(config: Config, name: str, arm: Arm, seed: int) -> RunSpec:
    updates = arm.updates or max(1, int(arm.operations or 0) // operations_of(arm, 1))
    shards = "iid-n1" if arm.experts == 1 or arm.partition == "iid" else f"{arm.partition}-n{arm.experts}"
    return RunSpec(
        id=run_id(name, seed),
        kind="arm",
        seed=seed,
        start=_seed_id(arm, seed) if arm.start == "seed" else None,
        shards=shards,
        window=config.data.window,
        settings=_plain(arm, updates),
        milestones=_milestones(arm.milestones, updates),
    )


def _seed_run(config: Config, arm: Arm, seed: int) -> RunSpec:
    """The seed run of an arm's sizes: one model on all windows, from a random start, with a head that learns."""
    sizes = {"width": arm.width, "depth": arm.depth, "embedding": arm.embedding}
    fixed = {"experts": 1, "head": "local", "partition": "iid", "start": "random", "milestones": (1.0,)}
    settings = config.seed_run.model_copy(update={**sizes, **fixed})
    assert settings.updates is not None  # checked by Config
    return RunSpec(
        id=_seed_id(arm, seed),
        kind="seed",
        seed=seed,
        start=None,
        shards="iid-n1",
        subset=config.seed_run.subset,
        window=config.data.window,
        settings=_plain(settings, settings.updates),
        milestones=(settings.updates,),
    )


def _seed_id(arm: Arm, seed: int) -> str:
    depth = "" if arm.depth == 2 else f"x{arm.depth}"
    embedding = "" if arm.embedding == 32 else f"e{arm.embedding}"
    return f"seed-d{arm.width}{depth}{embedding}-s{seed}"


def _plain(settings: Training | SeedRun | Arm, updates: int) -> Training:
    """The training settings alone, without what only tables read, so that a new label retrains nothing."""
    fields = settings.model_dump(include=set(Training.model_fields))
    return Training.model_validate({**fields, "updates": updates, "operations": None})


def _milestones(shares: Iterable[float], updates: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, round(share * updates)) for share in shares}))
