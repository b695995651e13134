"""Trained ensembles in use: throughput (claim C9), active experts (C10), and pairs of experts (C11)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.contrasts import (
    Side,
    at_budget,
    averaged,
    contrast,
    difference_row,
    loss_columns,
    own_loss,
    scores_of,
)
from soma.analysis.costs import by_milestone, seconds_of_arms
from soma.analysis.scores import Scores
from soma.analysis.verdict import Difference, difference_of, difference_over_seeds
from soma.models.count import operations_per_token
from soma.plan import Plan


def serving(plan: Plan, rows: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Compute the test loss of every arm with measured throughput, and many experts minus few (Tables 12 and 13).

    Returns:
        One row per arm at the end of its budget. The arm with many experts has another one if it comes closer, at an
        earlier milestone, to the idealised elapsed time of the arm with few (Table 13). Its rows have `difference`,
        many minus few at the end, with intervals. `token_operations` are those of the k experts that a byte runs
        through (min(k, N) F_N), without routing; `loss_low` ... bound the loss.
    """
    product = plan.config.products.inference
    scores = scores_of(plan, rows)
    out = []
    for arm in product.arms:
        end = plan.arm_runs[arm][0].updates
        for update in sorted({end, as_long_as_the_few(plan, costs) if arm == product.many else end}):
            row = own_loss(plan, scores, Side(arm, update))
            row |= {"update": update, "token_operations": token_operations(plan, arm)}
            if arm == product.many:
                row |= contrast(plan, scores, Side(product.many, update), Side(product.few))
            out.append(row)
    return pd.DataFrame(out)


def as_long_as_the_few(plan: Plan, costs: pd.DataFrame) -> int:
    """Return the milestone of the arm with many experts that took nearest to the elapsed time of the arm with few."""
    product = plan.config.products.inference
    elapsed = seconds_of_arms(costs, "idealised elapsed time")
    few = elapsed[product.few, plan.arm_runs[product.few][0].updates]
    return int((elapsed[product.many] - few).abs().idxmin())


def token_operations(plan: Plan, arm: str) -> int:
    """Count the operations of one byte in the k experts that are averaged, without routing (Figure 15)."""
    return plan.arms[arm].active * operations_per_token(plan.arm_runs[arm][0].model)


def at_one_cost(plan: Plan, rows: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Compute the test loss of every arm at one aggregate device time of training (Figure 15, left).

    The time is the configured one or, by default, the largest that every run has spent. Losses are interpolated
    linearly between the milestones of a run, and never extrapolated.

    Returns:
        One row per arm, with `device_seconds`, the columns of a loss over the runs that cover it, and their number
        `seeds`; the loss is NaN if none does.
    """
    product = plan.config.products.inference
    scores, spent = scores_of(plan, rows), by_milestone(costs)
    seconds = {
        run.id: [float(spent[run.id, update, "aggregate device time"]) for update in run.milestones]
        for arm in product.arms
        for run in plan.arm_runs[arm]
    }
    budget = product.device_seconds or min(times[-1] for times in seconds.values())
    out = []
    for arm in product.arms:
        where = {"arm": arm, "device_seconds": budget, "token_operations": token_operations(plan, arm)}
        out.append(where | averaged(plan, arm, at_budget(plan, scores, arm, budget, seconds)))
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
    """Compute what C10 claims of every arm, with k = 4 (or N): k minus k = 1, and what more experts change.

    Of arms with more than four experts, k is compared with the loss half-way from k = 1 to the best k, below which it
    has caught most of the gain of averaging; of those with the most experts, the best k is compared with all N. The
    best k of a document is chosen on the other half of the documents (odd or even), since a k that is chosen on the
    same documents looks better than it is.
    """
    rows = pd.concat([rows, *(_with_best(plan, rows, arm) for arm in plan.config.products.active.arms)])
    scores = _scores(plan, rows)
    arms = plan.config.products.active.arms
    most = max(plan.arms[arm].experts for arm in arms)
    out: list[dict[str, Any]] = []
    for arm in arms:
        runs = plan.arm_runs[arm]
        n, four = runs[0].experts, min(4, runs[0].experts)
        where = {"arm": arm, "experts": n, "run": " ".join(run.id for run in runs)}
        at = {k: scores.loss([(run.id, run.updates, "last", k) for run in runs]) for k in (1, four, _BEST, n)}
        pairs = [("k=1", four, at[1])]
        if n > four:
            (one, one_draws), (best, best_draws) = at[1], at[_BEST]
            pairs.append(("half-way from k=1 to the best k", four, ((one + best) / 2, (one_draws + best_draws) / 2)))
        if n == most > four:
            pairs.append((f"all {n}", _BEST, at[n]))
        for against, k, (other, other_draws) in pairs:
            own, draws = at[k]
            name = "best k" if k == _BEST else f"k={k}"
            out.append(where | {"k": name, "against": against} | difference_row(own - other, draws - other_draws))
    return pd.DataFrame(out)


_BEST = 0
"""Stands for the k that is best on the other half of the documents."""


def _with_best(plan: Plan, rows: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Return an arm's rows at the k that is best on the other half of the documents, over all its runs, as k = 0."""
    own = rows[rows["run"].isin([run.id for run in plan.arm_runs[arm]]) & (rows["part"] == "active")]
    half = own["document"].astype(int) % 2
    nats = own.groupby([half, "k"])["nats"].sum().unstack()  # the same bytes at every k
    best = nats.idxmin(axis=1)
    other = half.map(lambda h: best.get(1 - h, best[h]))  # a single document has no other half
    return own[own["k"] == other].assign(k=_BEST)


POINTS, PAIRS = 25, 10
"""Most points of Figure 17 for a run (about 1,300 of the paper's 32,640 pairs each), and least pairs of a point."""


def pair_groups(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Average the pairs of experts of each run in groups of similar correlation, as in Figure 17.

    Args:
        rows: rows of the measurement `active`: those with `part` `pairs` hold each pair.

    Returns:
        One row per (run, group): mean `correlation` and `gain`, and the number of `pairs`; groups differ by at most one
        pair.
    """
    out = []
    for run, own in rows[rows["part"] == "pairs"].groupby("run", sort=False):
        ordered = own.sort_values(["correlation", "first", "second"])
        points = max(1, min(POINTS, len(own) // PAIRS))
        for part in np.array_split(np.arange(len(own)), points):
            group = ordered.iloc[part]
            means = {name: group[name].mean() for name in ("correlation", "gain")}
            out.append({"run": run, "experts": int(group["experts"].iloc[0]), **means, "pairs": len(group)})
    return pd.DataFrame(out, columns=["run", "experts", "correlation", "gain", "pairs"])


def _scores(plan: Plan, rows: pd.DataFrame) -> Scores:
    own = rows[rows["part"] == "active"]
    return scores_of(plan, own.assign(set="validation", split="", iterate="last", document=own["document"].astype(int)))


def many_against_few(plan: Plan, rows: pd.DataFrame, serving: pd.DataFrame) -> list[Difference]:
    """Return what C9 claims: many experts faster than few, at a lower loss, for more training.

    The loss stands with the ratio of training operations that it was reached with, which the claim does not leave out.
    """
    p = plan.config.products.inference
    speed = rows.set_index("run")["scored_bytes_per_second"]
    many, few = (plan.arm_runs[arm] for arm in (p.many, p.few))
    pairs = [(a.id, b.id) for a in many for b in few if a.seed == b.seed]
    names = (f"N={many[0].experts}", f"N={few[0].experts}")
    ratio = [float(np.log(speed.loc[b] / speed.loc[a])) for a, b in pairs]
    runs = [run for pair in pairs for run in pair]
    name = f"throughput of {names[1]} over {names[0]}"
    out = [difference_over_seeds(name, ratio, runs, "log ratio")] if pairs else []
    trained = [float(runs[0].operations(runs[0].updates)) for runs in (many, few)]
    times = f"{trained[0] / trained[1]:.2g}"
    name = f"test loss of {names[0]} minus {names[1]}, "
    name += "at equal training operations" if times == "1" else f"for {times} times the training operations"
    end = serving[serving["difference"].notna() & (serving["update"] == many[0].updates)]
    return out + [difference_of(row, name) for row in end.itertuples()]


def few_active_experts(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C10 claims: k = 4 past half of the way from the nearest expert to the best k, which beats all N."""
    return [
        difference_of(row, f"N={row.experts}, width {plan.arms[row.arm].width}: {row.k} minus {row.against}")
        for row in rows.itertuples()
    ]


def unlike_pairs(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C11 claims: gain falls with the similarity of a pair's errors."""
    own = rows[rows["part"] == "complementarity"]
    if own.empty:
        return []
    name = f"correlation of similarity and gain over pairs, N={int(own['experts'].iloc[0])}"
    return [difference_over_seeds(name, own["spearman"], own["run"], "rank correlation")]


def throughput(plan: Plan, rows: pd.DataFrame, arm: str) -> tuple[float, float, float]:
    """Return the scored bytes per second of an arm: mean, smallest and largest over its runs (`rows`: measured)."""
    speed = rows.set_index("run")["scored_bytes_per_second"].loc[[run.id for run in plan.arm_runs[arm]]]
    return float(speed.mean()), float(speed.min()), float(speed.max())


def median_and_range(values: pd.Series) -> tuple[float, float, float]:
    """Return median, smallest and largest value over runs; one disturbed run would move a mean."""
    return float(values.median()), float(values.min()), float(values.max())
