"""Settings of every step, one JSON file each, so that an edit runs again only the steps that it affects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soma.catalogue import MEASUREMENTS
from soma.files.atomic import write_json
from soma.files.hashes import sha256_json
from soma.plan import Plan


def settings_files(plan: Plan) -> dict[str, Any]:
    """Return the settings that each rule reads, as JSON: one entry per rule or run, so that an edit reruns only the
    rules it affects.
    """
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
    # Tables do not depend on device or speed; the division of a run into jobs determines where its files are.
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
        "clusters": {**windows, "prefix": config.data.prefix},
        "shard": {**windows, "expert_validation": config.data.expert_validation},
        **{f"run-{run.id}": run.model_dump(mode="json") for run in plan.runs.values()},
        **{f"evaluate-{group}": _evaluation(plan, group) for group in plan.groups},
        **({"choose": _searched(plan)} if config.products.tuning else {}),
        **{f"measure-{name}": _measurement(plan, name) for name in config.catalogue.measurements},
        "compute": config.compute.model_dump(mode="json"),
        "campaign": config.model_dump(mode="json", exclude={"compute"}) | {"compute": compute},
    }


def _evaluation(plan: Plan, group: str) -> list[dict[str, Any]]:
    """Return every run of a group with the numbers of experts to average."""
    return [plan.published(run) | {"active": plan.active_counts(arm)} for run, arm in plan.group_runs(group).values()]


def _searched(plan: Plan) -> dict[str, Any]:
    """Return how to choose, and the candidate settings of each tuned arm, each with the run of every seed."""
    tuning = plan.config.products.tuning

    def entries(arm: str) -> list[dict[str, Any]]:
        return [plan.published(run) | {"active": [plan.arms[arm].active]} for run in plan.arm_runs[arm]]

    tried = {base: [entries(arm) for arm in tuning.variants(base)] for base in tuning.bases}
    return {"each_seed": tuning.each_seed, "tried": tried}


def _measurement(plan: Plan, name: str) -> dict[str, Any]:
    """Return the runs of a measurement and the settings of its product."""
    products = plan.config.products.model_dump(mode="json")
    runs = [plan.published(run) for run in plan.measured_runs(name)]
    measurement = MEASUREMENTS[name]
    out: dict[str, Any] = {"seed": plan.config.seed, "runs": runs, "milestones": measurement.early}
    out["product"] = {key: value for key, value in products[measurement.product].items() if key not in ("arms", "arm")}
    if name == "inference":
        product = plan.config.products.inference
        by_run = [arm for arm in product.arms for _ in plan.arm_runs[arm]]
        out["active"] = [plan.arms[arm].active for arm in by_run]
        out["requests"] = [product.requests_of.get(arm, product.requests) for arm in by_run]
        out["product"] = {key: out["product"][key] for key in ("repeats", "warmups")}
    if name in ("carry", "combiner"):
        arms = plan.product_arms(measurement.product)
        out["active"] = [plan.arms[arm].active for arm in arms for _ in plan.arm_runs[arm]]
    if name == "carry":
        out["product"] = {key: out["product"][key] for key in ("windows", "stretches")}
    if name == "recall":
        out["product"] = {key: v for key, v in out["product"].items() if key not in ("windows", "stretches")}
    if name == "active":
        out["product"]["pair_runs"] = [run.id for run in plan.arm_runs[plan.config.products.active.pairs]]
    if name == "ratios":
        paired = plan.config.products.paired
        out["phases"] = {
            run.id: phase
            for phase, arms in (("early", paired.early), ("late", paired.late))
            for arm in arms
            for run in plan.arm_runs[arm]
        }
        out["product"] = {key: out["product"][key] for key in ("probes", "batches", "batch")}
    if name == "estimator-variance":
        settings = [plan.arm_runs[arm][0].settings for arm in plan.config.products.estimators.arms]
        arms = plan.config.products.estimators.arms
        out["estimators"] = [
            {"arm": arm, "probe": s.probe, "difference": s.difference, "n_pert": s.n_pert}
            for arm, s in zip(arms, settings, strict=True)
        ]
    return out


class StepSettings:
    """The settings of every rule, one JSON file each; a rule's `params` hold the digest of the settings it reads."""

    def __init__(self, values: Mapping[str, Any], directory: Path) -> None:
        self.values, self.directory = values, directory

    def digest(self, name: str) -> str:
        return sha256_json(self.values[name])

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.json")

    def write(self) -> None:
        """Write the files whose content changed."""
        for name in self.values:
            path = Path(self.path(name))
            mark = path.with_suffix(".sha256")
            if not (path.exists() and mark.exists() and mark.read_text() == self.digest(name)):
                write_json(path, self.values[name])
                mark.write_text(self.digest(name))
