"""Where the rates of every arm come from: searches on ensemble validation, and the arms that have what they chose.

Beyond the paper. A comparison is fair only if the rates of both sides were chosen alike, and never on test documents.
The configuration holds the values; this module computes whether a search of the campaign chose them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.choice import mark_chosen, outcome
from soma.config.campaign import Arm
from soma.config.products import flat
from soma.config.training import Training
from soma.plan import Plan
from soma.runs import operations_of

FAIR_SHARE = 0.2
"""Smallest share of an arm's budget at which a search for its rates counts: early losses favour large steps."""
_SEED_RUNS = "seed runs"


def search(plan: Plan, losses: pd.DataFrame) -> pd.DataFrame:
    """Compute every search of `products.rates` on ensemble validation.

    Args:
        losses: per-document losses of the runs on the validation set (`rows.COLUMNS`).

    Returns:
        One row per (search, setting): `values` as JSON, the columns of `choice.outcome`, `updates`, `operations` and
        their `share` of the base arm's budget, `chosen`, and `edge`, the values of the chosen setting that are the
        smallest or largest tried. A search whose settings all failed has no chosen one.
    """
    out: list[dict[str, Any]] = []
    for name, product in plan.config.products.rates.items():
        values = [flat(setting) for setting in product.settings]
        tried = [outcome(plan, losses, arm) for arm in product.variants]
        for row, arm in zip(tried, product.variants, strict=True):
            run = plan.arm_runs[arm][0]
            spent = float(run.operations(run.updates))
            share = spent / _budget(plan.config.arms[product.arm])
            row |= {"updates": run.updates, "operations": spent, "share": share}
        losses_of_settings = [row["loss"] for row in tried]
        best = [] if np.isnan(losses_of_settings).all() else [int(np.nanargmin(losses_of_settings))]
        for row, arm, setting in zip(mark_chosen(tried, values, best), product.variants, values, strict=True):
            out.append({"search": name, "base": product.arm, "arm": arm, "values": json.dumps(setting), **row})
    columns = ["search", "base", "arm", "values", "loss", "sd", "seed_low", "seed_high", "seeds", "failed", "run"]
    return pd.DataFrame(out, columns=[*columns, "updates", "operations", "share", "chosen", "edge"])


def of_arms(plan: Plan, searched: pd.DataFrame, tuned: pd.DataFrame | None) -> pd.DataFrame:
    """Say for every arm that a product trains which search chose each of its rates, or what is missing.

    Args:
        searched: rows of `search`.
        tuned: rows of the equal search (`tuning.search`), if the campaign has it.

    Returns:
        One row per (arm, `key`), those of the seed runs last: its `value`, the `search` that serves the arm (empty:
        none), the `share` of the arm's budget on which it ran, the `chosen` value, and `reason`, which is empty if the
        arm has what a search chose on `FAIR_SHARE` of its budget or more, from several values and not at an edge. With
        `rates_given` every reason is empty.
    """
    given = plan.config.rates_given
    services = _services(plan, searched, tuned)
    out = []
    for name in _arms(plan):
        arm = plan.config.arms[name]
        own = flat(arm.model_dump())
        searches = [service for service in services if name in service["serves"]]
        for key in dict.fromkeys([*_keys(arm), *(key for service in searches for key in service["keys"])]):
            service = next((service for service in searches if key in service["keys"]), None)
            row: dict[str, Any] = {"arm": name, "key": key, "value": _text(own.get(key)), "search": "", "chosen": ""}
            row |= {"share": np.nan, "reason": "no search serves this arm"}
            if service is not None:
                share = service["operations"] / _budget(arm)
                row |= {"search": service["name"], "share": share, "chosen": _text((service["chosen"] or {}).get(key))}
                row["reason"] = _reason(service, key, own.get(key), share)
            out.append(row | ({"reason": ""} if given else {}))
    seed, own = plan.config.seed_run, flat(plan.config.seed_run.model_dump())
    for key in _keys(seed):
        row = {"arm": _SEED_RUNS, "key": key, "value": _text(own[key]), "search": "", "chosen": "", "share": np.nan}
        out.append(row | {"reason": "" if given else "not searched; one for every run that is compared"})
    return pd.DataFrame(out, columns=["arm", "key", "value", "search", "share", "chosen", "reason"])


def reasons(rows: pd.DataFrame) -> dict[str, str]:
    """Return what is wrong with the choice of an arm's rates, for every arm of which something is.

    Args:
        rows: rows of `of_arms`.
    """
    faulty = rows[rows["reason"] != ""]
    by_reason = faulty.groupby(["arm", "reason"], sort=False)["key"].agg(", ".join)
    out: dict[str, list[str]] = {}
    for (arm, reason), keys in by_reason.items():
        out.setdefault(str(arm), []).append(f"{keys}: {reason}")
    return {arm: "; ".join(parts) for arm, parts in out.items()}


def _services(plan: Plan, searched: pd.DataFrame, tuned: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Return the searches of both kinds: name, arms served, keys, operations of a run, chosen values and edge."""
    products, out = plan.config.products, []
    for name, product in products.rates.items():
        rows = searched[searched["search"] == name]
        best = rows[rows["chosen"].astype(bool)]
        chosen = json.loads(best["values"].iloc[0]) if len(best) else None
        facts = {"name": name, "serves": product.serves, "operations": product.operations}
        facts |= _tried([json.loads(values) for values in rows["values"]])
        out.append(facts | {"chosen": chosen, "edge": best["edge"].iloc[0] if len(best) else ""})
    if tuned is None:
        return out
    for base, serves in products.tuning.serves.items():
        best = tuned[(tuned["base"] == base) & tuned["chosen"]]
        # Seeds that chose for themselves may differ: no single value of an arm is what all of them chose.
        chosen = {key: best[key].iloc[0] if best[key].nunique() == 1 else _either(best[key]) for key in ("lr", "eps")}
        edges = dict.fromkeys(key for edge in best["edge"] if edge for key in edge.split(" and "))
        facts = {"name": f"Table 6, {base}", "serves": serves}
        facts |= _tried([{"lr": lr, "eps": eps} for lr, eps in products.tuning.settings])
        out.append(
            facts | {"operations": _budget(plan.config.arms[base]), "chosen": chosen, "edge": " and ".join(edges)}
        )
    return out


def _either(values: pd.Series) -> str:
    return " or ".join(_text(value) for value in sorted(set(values)))


def _tried(settings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys of a search, and those of which only one value was tried."""
    keys = [*settings[0]]
    return {"keys": keys, "fixed": {key for key in keys if len({setting[key] for setting in settings}) == 1}}


def _reason(service: Mapping[str, Any], key: str, value: Any, share: float) -> str:
    chosen, edge = service["chosen"], service["edge"].split(" and ")
    if chosen is None:
        return "every setting of its search failed"
    faults = []
    if share < FAIR_SHARE:
        faults.append(f"the search ran on {100 * share:.2g} % of the arm's budget, less than {100 * FAIR_SHARE:.0f} %")
    if key in service["fixed"]:
        faults.append("only one value was tried")
    if key in edge:
        faults.append("the choice is at an edge of what was tried")
    if value != chosen[key]:
        faults.append(f"the arm has {_text(value)}, chosen was {_text(chosen[key])}")
    return "; ".join(faults)


def _arms(plan: Plan) -> list[str]:
    """Return every configured arm that is trained, and the base of the sweep, whose variants have its rates."""
    names = [name for name in plan.arms if name in plan.config.arms]
    sweep = plan.config.products.sweep
    return list(dict.fromkeys([*names, sweep.arm] if sweep else names))


def _keys(arm: Training) -> tuple[str, ...]:
    """Return the keys of a method that must be chosen for an arm."""
    if arm.method == "eggroll":
        return ("population", "sigma", "alpha", "step")
    head = ("head_lr",) if arm.head == "local" else ()
    return (*(("lr", "eps") if arm.method == "spsa" else ("lr",)), *head)


def _budget(arm: Arm) -> float:
    """Return the operations of an arm's budget."""
    return float(arm.operations or 0) if arm.updates is None else float(operations_of(arm, arm.updates))


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
