"""The summary steps: from per-document losses, costs and histories to the rows shown in tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

from soma.analysis import active, backpropagation, continuations, controls, fixed_size, sweep, tuning
from soma.analysis.contrasts import scores_of
from soma.config.campaign import Config
from soma.evaluation.rows import KEYS
from soma.files.atomic import atomic_path, read_json
from soma.plan import Plan, make_plan


def load_plan(settings: Path) -> Plan:
    return make_plan(Config.model_validate(read_json(settings)))


def summarise(name: str, settings: Path, evaluation: Path, measurements: Path, runs: Path, output: Path) -> None:
    """Write one summary as Parquet.

    Args:
        settings: settings of the whole campaign.
        evaluation, measurements, runs: folders of evaluated groups, measurements and all runs.
    """
    plan = load_plan(settings)
    p = plan.config.products

    def losses(role: str, arms: Iterable[str]) -> pd.DataFrame:
        groups = dict.fromkeys(plan.group_of[arm] for arm in arms)
        paths = [evaluation / role / f"{group}.parquet" for group in groups]
        # A run shared by two groups was evaluated in both.
        return pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True).drop_duplicates(list(KEYS))

    def measured(kind: str) -> pd.DataFrame:
        return pd.read_parquet(measurements / f"{kind}.parquet")

    def fixed_size_rows() -> pd.DataFrame:
        return pd.concat([losses(role, p.fixed_size.arms) for role in ("validation", "test", "external")])

    def histories() -> dict[str, pd.DataFrame]:
        found = [run for arm in p.paired.arms for run in plan.arm_runs[arm]]
        return {
            run.id: pd.concat([pd.read_parquet(runs / folder / "history.parquet") for folder in plan.folders(run)])
            for run in found
        }

    def averaged() -> pd.DataFrame:
        rows = measured("active")
        return rows[rows["part"] == "active"]

    def control_rows() -> pd.DataFrame:
        return losses("test", (*p.fixed_size.arms, *p.controls.arms))

    summaries: dict[str, Callable[[], pd.DataFrame]] = {
        "losses": lambda: fixed_size.losses(plan, fixed_size_rows()),
        "differences": lambda: fixed_size.differences(plan, fixed_size_rows()),
        "controls": lambda: controls.differences(plan, control_rows(), measured("costs")),
        "sizes": lambda: controls.sizes(plan, control_rows()),
        "backpropagation": lambda: backpropagation.summarise(plan, losses("validation", p.backpropagation.arms)),
        "tuning-compared": lambda: tuning.compare(plan, measured("tuning"), measured("tuning-test")),
        "tuning": lambda: tuning.search(plan, losses("validation", plan.groups["tuning"])),
        "populations": lambda: tuning.search_populations(plan, losses("validation", plan.groups["populations"])),
        "paired": lambda: continuations.paired(plan, losses("test", p.paired.arms), histories()),
        "allocation": lambda: continuations.allocation(plan, losses("test", p.allocation.arms)),
        "active-losses": lambda: active.losses(plan, averaged()),
        "active-differences": lambda: active.differences(plan, averaged()),
        "serving": lambda: continuations.serving(plan, losses("test", p.inference.arms)),
        "ablation": lambda: continuations.ablation(plan, losses("test", p.ablation.arms)),
        "sweep": lambda: sweep.curves(plan, losses("validation", plan.groups["sweep"]), measured("costs")),
        "crossings": lambda: sweep.crossings(measured("sweep")),
        "sweep-differences": lambda: sweep.differences(plan, losses("validation", plan.groups["sweep"])),
        "budgets": lambda: sweep.budgets(plan, losses("validation", plan.groups["sweep"])),
        "best-counts": lambda: sweep.best_counts(plan, losses("validation", plan.groups["sweep"])),
        "estimators": lambda: _estimators(plan, losses("test", p.estimators.arms), measured("estimator-variance")),
    }
    with atomic_path(output) as path:
        summaries[name]().to_parquet(path, index=False)


def _estimators(plan: Plan, rows: pd.DataFrame, variance: pd.DataFrame) -> pd.DataFrame:
    """Compute every estimator's test loss at the end of its budget, the first's minus its own, and its variance."""
    arms = plan.config.products.estimators.arms
    scores = scores_of(plan, rows)
    out = []
    for arm in arms:
        run = plan.arm_runs[arm][0]
        spent = {"updates": run.updates, "operations": float(run.operations(run.updates))}
        out.append(spent | continuations.against(plan, scores, arms[0], arm))
    return pd.DataFrame(out).merge(variance.rename(columns={"name": "arm", "difference": "rule"}), on="arm", how="left")
