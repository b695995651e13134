"""Trained ensembles in use: throughput (claim C9), active experts (C10), and pairs of experts (C11)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.contrasts import (
    Side,
    contrast,
    difference_row,
    loss_columns,
    loss_row,
    scores_of,
)
from soma.analysis.scores import Scores
from soma.analysis.verdict import Difference, difference_of, difference_over_seeds
from soma.plan import Plan


def serving(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the test loss of every arm with measured throughput, and many experts minus few."""
    product = plan.config.products.inference
    scores = scores_of(plan, rows)
    out = []
    for arm in product.arms:
        row = loss_row(plan, scores, Side(arm))
        row |= {f"loss_{end}": row.pop(end) for end in ("low", "high", "seed_low", "seed_high")}
        if arm == product.many:
            row |= contrast(plan, scores, Side(product.many), Side(product.few))
        out.append(row)
    return pd.DataFrame(out)


def active_losses(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the loss of every arm for every number k of active experts, averaged over seeds.

    Args:
        rows: rows of the measurement `active`: those with `part` `active` hold nats of every document under the
            nearest k experts.
    """
    scores = _scores(plan, rows)
    out: list[dict[str, Any]] = []
    for arm in plan.config.products.active.arms:
        runs = plan.arm_runs[arm]
        for k in range(1, runs[0].experts + 1):
            mean, draws = scores.loss([(run.id, run.updates, "last", k) for run in runs])
            where = {"arm": arm, "experts": runs[0].experts, "k": k, "run": " ".join(run.id for run in runs)}
            out.append(where | loss_columns(mean, draws) | {"seeds": len(runs)})
    return pd.DataFrame(out)


def active_differences(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute for every arm k = 4 (or N) minus k = 1, and k = 4 minus the loss half-way from k = 1 to the best k.

    The best k is chosen on the same data, which can only make it look better than it is.
    """
    scores = _scores(plan, rows)
    means = active_losses(plan, rows).set_index(["arm", "k"])["loss"]
    out: list[dict[str, Any]] = []
    for arm in plan.config.products.active.arms:
        runs = plan.arm_runs[arm]
        four = min(4, runs[0].experts)
        best = int(means.loc[arm].idxmin())

        def at(k: int, runs: Any = runs) -> Any:
            return scores.loss([(run.id, run.updates, "last", k) for run in runs])

        (one, one_draws), (some, some_draws), (top, top_draws) = at(1), at(four), at(best)
        where = {"arm": arm, "experts": runs[0].experts, "k": four, "run": " ".join(run.id for run in runs)}
        out.append(where | {"against": "k=1"} | difference_row(some - one, some_draws - one_draws))
        if best != four:
            half = some - (one + top) / 2, some_draws - (one_draws + top_draws) / 2
            out.append(where | {"against": f"half-way from k=1 to k={best}"} | difference_row(*half))
    return pd.DataFrame(out)


def _scores(plan: Plan, rows: pd.DataFrame) -> Scores:
    own = rows[rows["part"] == "active"]
    return scores_of(plan, own.assign(set="validation", split="", iterate="last", document=own["document"].astype(int)))


def many_against_few(plan: Plan, rows: pd.DataFrame, serving: pd.DataFrame) -> list[Difference]:
    """Return what C9 claims: many experts faster than few, at a lower loss."""
    p = plan.config.products.inference
    speed = rows.set_index("run")["scored_bytes_per_second"]
    many, few = (plan.arm_runs[arm] for arm in (p.many, p.few))
    pairs = [(a.id, b.id) for a in many for b in few if a.seed == b.seed]
    names = (f"N={many[0].experts}", f"N={few[0].experts}")
    ratio = [float(np.log(speed.loc[b] / speed.loc[a])) for a, b in pairs]
    runs = [run for pair in pairs for run in pair]
    name = f"throughput of {names[1]} over {names[0]}"
    out = [difference_over_seeds(name, ratio, runs, "log ratio")] if pairs else []
    compared = serving[serving["difference"].notna()]
    return out + [difference_of(row, f"test loss of {names[0]} minus {names[1]}") for row in compared.itertuples()]


def few_active_experts(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C10 claims: k = 4 better than the nearest expert, and past half of the way to the best k."""
    return [difference_of(row, f"N={row.experts}: k={row.k} minus {row.against}") for row in rows.itertuples()]


def unlike_pairs(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C11 claims: gain falls with the similarity of a pair's errors."""
    own = rows[rows["part"] == "complementarity"]
    if own.empty:
        return []
    name = f"correlation of similarity and gain over pairs, N={int(own['experts'].iloc[0])}"
    return [difference_over_seeds(name, own["spearman"], own["run"], "rank correlation")]


def throughput(plan: Plan, rows: pd.DataFrame, arm: str) -> float:
    """Return the scored bytes per second of an arm, averaged over its runs; `rows` are of the measurement."""
    speed = rows.set_index("run")["scored_bytes_per_second"]
    return float(speed.loc[[run.id for run in plan.arm_runs[arm]]].mean())


def median_and_range(values: pd.Series) -> tuple[float, float, float]:
    """Return median, smallest and largest value over runs; one disturbed run would move a mean."""
    return float(values.median()), float(values.min()), float(values.max())
