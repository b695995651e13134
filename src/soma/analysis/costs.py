"""The six cost quantities of every run, one row each, with unit and convention (soma.accounting.cost)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from soma.accounting import cost
from soma.accounting.cost import Ledger
from soma.analysis.scores import at_end
from soma.plan import Plan
from soma.runs import RunSpec, part_experts

QUANTITIES = {
    "arithmetic operations": "T B N F_N s per forward (2 n_pert if central); head, validation and routing excluded",
    "aggregate device time": "sum over jobs of the time inside recorded updates; validation and saving excluded",
    "idealised elapsed time": "one device per expert, all at once: recorded updates of the slowest expert",
    "actual elapsed time": "first start to last end of the run's jobs by the clock, whatever else ran between",
    "initialisation": "aggregate device time of the seed run that the experts start from",
    "preprocessing": "wall time of the download, encoding, feature, cluster and shard steps; shared by all runs",
}

WHOLE_JOBS = "device time of whole jobs"
"""The other convention of Table 3 for aggregate device time; not one of the six quantities."""


def run_costs(
    plan: Plan, records: Mapping[str, Mapping[str, Mapping[str, Any]]], preprocessing_seconds: float
) -> pd.DataFrame:
    """Tabulate costs, one row per (quantity, milestone, run, arm), with unit, convention, device, threads and engine.

    `processor_share` tells how much of its processors a run had to itself (`cost.processor_share`).

    Args:
        records: cost.json of every run and part, as written by a training job.
        preprocessing_seconds: wall time of the steps before training.
    """
    rows = []
    for arm, runs in plan.arm_runs.items():
        for run in runs:
            parts = records[run.id]
            ledgers = [Ledger.from_json(dict(record["ledger"])) for record in parts.values()]
            devices = [record["devices"] for record in parts.values()]
            sized = [(ledger, len(part_experts(part))) for ledger, part in zip(ledgers, parts, strict=True)]
            first = next(iter(parts.values()))
            for update in run.milestones:
                values = {
                    "arithmetic operations": float(run.operations(update)),
                    "aggregate device time": cost.aggregate_device_seconds(ledgers, devices, update),
                    "idealised elapsed time": cost.idealised_elapsed_seconds(sized, update),
                    "initialisation": _initialisation(plan, run.start, records),
                    "preprocessing": preprocessing_seconds,
                }
                if update == run.updates:
                    values["actual elapsed time"] = cost.actual_elapsed_seconds(ledgers)
                    values[WHOLE_JOBS] = cost.whole_job_seconds(ledgers, devices)
                for quantity, value in values.items():
                    rows.append(
                        {
                            "run": run.id,
                            "arm": arm,
                            "seed": run.seed,
                            "update": update,
                            "quantity": quantity,
                            "value": value,
                            "unit": "operations" if quantity == "arithmetic operations" else "s",
                            "convention": QUANTITIES.get(quantity, "sum over jobs of the time their processes ran"),
                            "device": first["device"],
                            "threads": first["threads"],
                            "engine": first["engine"],
                            "processor_share": cost.processor_share(ledgers, first["threads"]),
                        }
                    )
    return pd.DataFrame(rows)


def by_milestone(costs: pd.DataFrame) -> pd.Series:
    """Index the values by run, update and quantity; arms that share a run have the same values."""
    keys = ["run", "update", "quantity"]
    return costs.drop_duplicates(keys).set_index(keys)["value"]


def _initialisation(plan: Plan, start: str | None, records: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> float:
    if start is None:
        return 0.0
    ledgers = [Ledger.from_json(dict(record["ledger"])) for record in records[start].values()]
    devices = [record["devices"] for record in records[start].values()]
    return cost.aggregate_device_seconds(ledgers, devices, plan.runs[start].updates)


def at_budget(costs: pd.DataFrame, runs: Sequence[RunSpec], quantity: str) -> pd.Series:
    """Return a cost quantity of each run at the end of its budget."""
    ends = (costs["quantity"] == quantity) & (costs["update"] == runs[0].updates)
    return costs[ends & costs["run"].isin([run.id for run in runs])].drop_duplicates("run")["value"]


def seconds_per_update(costs: pd.DataFrame, runs: Sequence[RunSpec], quantity: str) -> pd.Series:
    """Return a time of each run, such as `aggregate device time`, divided by its number of updates."""
    return at_budget(costs, runs, quantity) / runs[0].updates


def processor_shares(costs: pd.DataFrame) -> pd.Series:
    """Return every run's share of its threads' processors, which falls below 1 where something ran beside it."""
    return costs.groupby("run")["processor_share"].first()


def seconds_of_arms(costs: pd.DataFrame, quantity: str) -> pd.Series:
    """Return a time, such as `aggregate device time`, by arm and update, averaged over the runs of an arm."""
    return costs[costs["quantity"] == quantity].groupby(["arm", "update"])["value"].mean()


def campaign_totals(plan: Plan, costs: pd.DataFrame) -> dict[str, float]:
    """Return the six cost quantities of the whole campaign, with their units in the names.

    Operations and device time are summed over all arms; elapsed times are of the longest run, since runs can be
    parallel.
    """
    by_run = at_end(costs).pivot_table(index="run", columns="quantity", values="value")
    seeds = {run.id for run in plan.runs.values() if run.kind == "seed"}
    from_seeds = by_run.index.isin([run.id for run in plan.runs.values() if run.start in seeds])  # not a continuation
    return {
        "arithmetic operations of all arms": float(by_run["arithmetic operations"].sum()),
        "aggregate device time of all arms (s)": float(by_run["aggregate device time"].sum()),
        "idealised elapsed time of the longest run (s)": float(by_run["idealised elapsed time"].max()),
        "actual elapsed time of the longest run (s)": float(by_run["actual elapsed time"].max()),
        f"initialisation, the longest of {len(seeds)} seed runs (s)": float(
            by_run.loc[from_seeds, "initialisation"].max()
        ),
        "preprocessing (s)": float(by_run["preprocessing"].max()),
    }
