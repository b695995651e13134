"""Expansion of a configuration into the runs that its products need: experts, data, start and budget of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from soma.catalogue import MEASUREMENTS, Losses
from soma.config.campaign import Arm, Config, SeedRun
from soma.config.training import Training
from soma.errors import SomaError
from soma.runs import RunSpec, family_of, operations_of, part_experts


@dataclass(frozen=True)
class Plan:
    """All runs of a campaign and their division into jobs."""

    config: Config
    arms: dict[str, Arm]
    """Arms that products run: those in the configuration, those they continue, and those derived from another arm."""
    arm_runs: dict[str, list[RunSpec]]
    """Runs of each arm, in the order of its seeds. A derived arm may share a run with another."""
    runs: dict[str, RunSpec]
    groups: dict[str, tuple[str, ...]]
    """Arms that one evaluation job covers: a single arm of Table 4, those of one search (`rates-NAME`), or those of a
    product that no earlier group has.
    """

    def active_counts(self, arm: str) -> list[int]:
        """Return the numbers of active experts to evaluate: the nearest alone, and the arm's k."""
        return sorted({1, self.arms[arm].active})

    @cached_property
    def group_of(self) -> dict[str, str]:
        """Group that evaluates each arm."""
        return {arm: group for group, arms in self.groups.items() for arm in arms}

    def group_runs(self, group: str) -> dict[str, tuple[RunSpec, str]]:
        """Return every run of a group with its arm, by run id."""
        return {run.id: (run, arm) for arm in self.groups[group] for run in self.arm_runs[arm]}

    @cached_property
    def expert_counts(self) -> list[int]:
        """Every N that needs its own clusters."""
        return sorted({run.clusters for run in self.runs.values() if run.clusters is not None})

    def parts(self, run: RunSpec) -> list[str]:
        """Return the names of the groups of experts that one job trains in lockstep, `first-last`."""
        # A summed loss needs the losses of all experts in one place.
        per_job = run.experts if run.settings.loss == "summed" else self.config.compute.experts_per_job
        firsts = range(0, run.experts, per_job)
        return [f"{a:03d}-{min(a + per_job, run.experts) - 1:03d}" for a in firsts]

    def folders(self, run: RunSpec) -> list[str]:
        """Return the folders of a run's parts, relative to the folder of all runs."""
        return [f"{run.id}/{part}" for part in self.parts(run)]

    def start_folders(self, run: RunSpec, part: str) -> list[str]:
        """Return the parts of other runs that the experts of a part start from."""
        if run.start is None:
            return []
        source = self.runs[run.start]
        parts = self.parts(source)
        if run.kind == "continuation":
            own = set(part_experts(part))
            parts = [name for name in parts if own & set(part_experts(name))]
        return [f"{source.id}/{name}" for name in parts]

    def head_folder(self, run: RunSpec) -> str | None:
        """Return the part that holds a run's shared frozen head, if it has one."""
        return self.folders(self.runs[run.head_from])[0] if run.head_from else None

    def published(self, run: RunSpec) -> dict[str, Any]:
        """Return the facts that a step needs to open a trained run (steps.published)."""
        return {
            "run": run.model_dump(mode="json", exclude={"leg"}),
            "parts": self.folders(run),
            "head": self.head_folder(run),
        }

    def files(self, runs: Iterable[RunSpec]) -> list[RunSpec]:
        """Return these runs and those whose heads they share: all that must be trained before they can be opened."""
        needed = {}
        for run in runs:
            needed[run.id] = run
            if run.head_from:
                needed[run.head_from] = self.runs[run.head_from]
        return list(needed.values())

    def product_arms(self, product: str) -> tuple[str, ...]:
        """Return the arms of a product of the configuration, including those that it derives."""
        if product == "rates":
            return tuple(self.config.searched)
        if product in _DERIVING:
            return self.groups[product]
        return tuple(self.config.products.given[product].arms)

    def measured_runs(self, name: str) -> list[RunSpec]:
        """Return the runs that a measurement opens."""
        measurement = MEASUREMENTS[name]
        arms = self.product_arms(measurement.product)
        runs = [run for arm in (arms[:1] if measurement.opens == "first arm" else arms) for run in self.arm_runs[arm]]
        if measurement.opens == "all runs and their starts":
            starts = dict.fromkeys(run.start for run in runs if run.start)
            return [*runs, *(self.runs[start] for start in starts)]
        return runs[:1] if measurement.opens == "first run" else runs


_DERIVING = ("tuning", "sweep", "rates", "widths")
"""Products that derive arms from a base arm."""


def run_id(arm: str, seed: int) -> str:
    return f"{arm}-s{seed}"


def make_plan(config: Config) -> Plan:
    """Plan the runs that the configured products need, including seed runs.

    Raises:
        SomaError: if two arms of the configuration describe the same run.
    """
    derived = _derived_arms(config)
    named = _named_arms(config, [arm for group in derived.values() for arm in group.values()])
    arms = named | {name: arm for group in derived.values() for name, arm in group.items()}
    searched = derived["tuning"].keys() | derived["rates"].keys()
    runs: dict[str, RunSpec] = {}
    described: dict[str, tuple[str, str]] = {}
    run_ids: dict[str, list[str]] = {}
    for name, arm in arms.items():
        for seed in arm.seeds:
            spec = _arm_run(config, name, arm, seed)
            content = spec.model_copy(update={"id": ""}).model_dump_json()
            first, same = described.setdefault(content, (name, spec.id))
            if first != name and name in named:
                raise SomaError(f"the arms `{first}` and `{name}` describe the same run; keep one and name it twice.")
            if same == spec.id:
                runs[same] = spec.model_copy(update={"may_fail": name in searched})
            run_ids.setdefault(name, []).append(same)
            if arm.start == "seed":
                runs[_seed_id(arm, seed)] = _seed_run(config, arm, seed)
    for run in list(runs.values()):
        if run.kind == "continuation" and run.start is not None:
            runs[run.start] = runs[run.start].model_copy(update={"keep_memory": True})
    for name in config.products.fixed_size.arms if config.compute.legs else ():
        compared = runs[run_ids[name][0]]
        runs[compared.id] = compared.model_copy(update={"leg": _last_leg(compared)})
    arm_runs = {name: [runs[i] for i in ids] for name, ids in run_ids.items()}
    groups = _groups(config) | {name: tuple(group) for name, group in derived.items() if name != "rates"}
    # A search can be evaluated, and its weights deleted, before the others are trained.
    groups |= {f"rates-{name}": tuple(search.variants) for name, search in config.products.rates.items()}
    return Plan(config, arms, arm_runs, dict(sorted(runs.items())), groups)


def _named_arms(config: Config, derived: Iterable[Arm]) -> dict[str, Arm]:
    """Return the configured arms that a product shows, and those that they or derived arms continue."""
    names = dict.fromkeys(name for name in config.products.arms if name in config.arms)
    shown = [*(config.arms[name] for name in names), *derived]
    names |= dict.fromkeys(arm.start for arm in shown if arm.start in config.arms)
    return {name: config.arms[name] for name in names}


def _groups(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the groups of evaluated arms; each arm is in the first group that has it."""
    groups: dict[str, tuple[str, ...]] = {arm: (arm,) for arm in config.products.fixed_size.arms}
    taken = set(groups)
    summaries = config.catalogue.summaries.values()
    reads = [read for summary in summaries for read in summary.reads if isinstance(read, Losses)]
    for name in dict.fromkeys(product for read in reads for product in read.products if product not in _DERIVING):
        own = tuple(arm for arm in dict.fromkeys(config.products.given[name].arms) if arm not in taken)
        taken |= set(own)
        if own:
            groups[name] = own
    return groups


def _derived_arms(config: Config) -> dict[str, dict[str, Arm]]:
    """Return the arms that products derive from a base arm by changing settings, by product."""
    p, arms = config.products, config.arms

    def derive(base: str, variants: Mapping[str, Mapping[str, Any]]) -> dict[str, Arm]:
        return {name: arms[base].model_copy(update=dict(change)) for name, change in variants.items()}

    tuned = p.tuning.bases if p.tuning else ()
    return {
        "tuning": {k: v for base in tuned for k, v in derive(base, p.tuning.variants(base)).items()},
        "sweep": config.swept,
        "rates": config.searched,
        "widths": derive(p.widths.arm, p.widths.variants) if p.widths else {},
    }


def _arm_run(config: Config, name: str, arm: Arm, seed: int) -> RunSpec:
    if family_of(arm) == "module" and arm.start != "random":
        raise SomaError(f"the arm `{name}` trains torch modules of your own, which start at random; set start: random.")
    updates = arm.updates or max(1, int(arm.operations or 0) // operations_of(arm, 1))
    # A continuation trains on the shards of the arm it continues, of which it may have the first experts alone.
    shards_of = config.arms[arm.start].experts if arm.start in config.arms else arm.experts
    shards = "iid-n1" if shards_of == 1 or arm.partition == "iid" else f"{arm.partition}-n{shards_of}"
    start, head_from = _start(config, arm, seed)
    return RunSpec(
        id=run_id(name, seed),
        kind="continuation" if arm.start in config.arms else "arm",
        seed=seed,
        start=start,
        head_from=head_from,
        shards=shards,
        subset=arm.subset,
        window=config.data.window,
        settings=_plain(arm, updates),
        milestones=_milestones(arm.milestones, updates),
    )


def _start(config: Config, arm: Arm, seed: int) -> tuple[str | None, str | None]:
    """Return the run that an arm's run starts from, and the one whose frozen head it shares."""
    if arm.start in config.arms:
        other = config.arms[arm.start]
        seed = seed if seed in other.seeds else other.seeds[0]
        return run_id(arm.start, seed), _start(config, other, seed)[1]
    start = _seed_id(arm, seed) if arm.start == "seed" else None
    return start, start if arm.head == "shared-frozen" and family_of(arm) == "lstm" else None


def _seed_run(config: Config, arm: Arm, seed: int) -> RunSpec:
    """Return the seed run for an arm's sizes: one model on all windows, random initialisation, a trained head."""
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
    """Return the training settings without those that only tables read, so that a new label retrains nothing."""
    fields = settings.model_dump(include=set(Training.model_fields))
    return Training.model_validate({**fields, "updates": updates, "operations": None})


def _last_leg(run: RunSpec) -> int | None:
    """Return the first update of a run's last leg, which holds two checks of the schedule, the last one at the end."""
    every = run.settings.plateau.every
    checks_before_the_end = (run.updates - 1) // every
    return max(1, every * (checks_before_the_end - 1)) if run.updates > 1 else None


def _milestones(shares: Iterable[float], updates: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, round(share * updates)) for share in shares}))
