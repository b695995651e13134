"""Scaling and allocation: sweeps over N, n_pert and B, and continuations at equal operations.

Figures 7, 8, 13 and 14, Tables 10 and 11, claims C8, C14 and C15.

A global step costs u operations in total and tau operations per expert; with a total budget C and a budget D per
expert, an allocation can take s = min(C / u, D / tau) steps (docs/paper.md section 6). Losses between two milestones
are interpolated; nothing is extrapolated.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.contrasts import (
    AtBudget,
    Side,
    at_budget,
    at_equal_cost,
    averaged,
    contrast,
    difference_at,
    loss_row,
    own_loss,
    scores_of,
    shared_seeds,
)
from soma.analysis.costs import by_milestone
from soma.analysis.scores import Scores
from soma.analysis.verdict import Difference, difference_of
from soma.plan import Plan

AXES = {"experts": "N", "n_pert": "n_pert", "batch": "B"}
"""The swept settings, with their names in tables."""


CELLS = 12
"""Budgets on each axis of the map of Figure 14."""


def variants(plan: Plan) -> Iterator[tuple[str, int, str]]:
    """Yield axis, value and arm of every swept setting."""
    product = plan.config.products.sweep
    for axis, letter in zip(AXES, "npb", strict=True):
        for value in getattr(product, axis):
            yield axis, value, f"{product.arm}-{letter}{value}"


def curves(plan: Plan, rows: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Compute the loss of every allocation at every milestone, with its cost so far.

    Args:
        rows: per-document validation losses of the swept arms.
        costs: rows of `costs.run_costs`.
    """
    scores = scores_of(plan, rows)
    seconds = by_milestone(costs)
    out: list[dict[str, Any]] = []
    for axis, value, arm in variants(plan):
        runs = plan.arm_runs[arm]
        for update in runs[0].milestones:
            operations = float(runs[0].operations(update))  # 64 bits overflow at the paper's sizes
            spent = {
                "operations": operations,
                "operations_per_expert": operations / runs[0].experts,
                "device_seconds": _mean(seconds, runs, update, "aggregate device time"),
                "elapsed_seconds": _mean(seconds, runs, update, "idealised elapsed time"),
            }
            where = {"axis": axis, "value": value, "update": update}
            out.append(where | spent | loss_row(plan, scores, Side(arm, update)))
    return pd.DataFrame(out)


def differences(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compare neighbours on each axis at equal updates, the larger value minus the smaller.

    One more axis compares the extremes. `aggregate`: the fewest minus the most at the smallest total operations where
    both have a loss; there, C8 says that fewer win.
    """
    scores = scores_of(plan, rows)
    out: list[dict[str, Any]] = []
    for axis in AXES:
        arms = [(value, arm) for a, value, arm in variants(plan) if a == axis]
        for (small, before), (large, after) in itertools.pairwise(arms):
            sides = Side(after), Side(before)
            out.append({"axis": axis, "larger": large, "smaller": small} | contrast(plan, scores, *sides))
    counts = sorted((value, arm) for axis, value, arm in variants(plan) if axis == "experts")
    if len(counts) > 1:
        few, many = counts[0], counts[-1]
        ends = {"larger": many[0], "smaller": few[0]}
        spent = {
            run.id: [float(run.operations(u)) for u in run.milestones]
            for _, arm in (few, many)
            for run in plan.arm_runs[arm]
        }
        row = at_equal_cost(plan, scores, Side(few[1]), Side(many[1]), spent, "early")
        out.append({"axis": "aggregate"} | ends | row)
    return pd.DataFrame(out)


def crossings(plan: Plan, swept: pd.DataFrame) -> pd.DataFrame:
    """Compute each allocation's cost until it reaches the target loss, `products.sweep.target`.

    Without a configured target it is the median of the allocations' lowest losses (of an even number, the higher of the
    two in the middle), so that at least half reach it and it is far from the start. The loss is linear between
    milestones, and the first crossing counts. For an allocation already below the target at its first milestone, the
    cost there is an upper bound (`bound`). One that never reaches it has no cost (`reached` is false).

    Args:
        swept: rows of `curves`.
    """
    arms = swept.drop_duplicates(["run", "update"]).sort_values("update").groupby("arm", sort=False)
    lowest = arms["loss"].min()
    configured = plan.config.products.sweep.target
    target = float(np.quantile(lowest, 0.5, method="higher")) if configured is None else configured
    out = [{"arm": arm, "target": target, "run": own["run"].iloc[0]} | _crossing(own, target) for arm, own in arms]
    return pd.DataFrame(out)


def _crossing(own: pd.DataFrame, target: float) -> dict[str, Any]:
    losses, names = own["loss"].to_numpy(), ("operations", "device_seconds", "elapsed_seconds")
    facts = {"lowest": float(losses.min()), "reached": bool(losses.min() <= target)}
    if not facts["reached"]:
        return dict.fromkeys((*names, "first_operations"), float("nan")) | {"bound": False} | facts
    at = int(np.argmax(losses <= target))
    share = 1.0 if at == 0 else float((losses[at - 1] - target) / (losses[at - 1] - losses[at]))
    spent = {"first_operations": float(own["operations"].iloc[at])}
    for name in names:
        values = own[name].to_numpy()
        spent[name] = float(values[at] if at == 0 else values[at - 1] + share * (values[at] - values[at - 1]))
    return spent | {"bound": at == 0} | facts


def budgets(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Find the best allocation at each budget of operations (Table 10) among those whose curve covers it.

    A run that ended before the budget, or was first evaluated after it, is no candidate (the paper's Eq. 6 and 22).

    Returns:
        One row per budget and covering allocation; `best` marks the lowest loss where at least two cover the budget.
    """
    scores = scores_of(plan, rows)
    out: list[dict[str, Any]] = []
    for budget in plan.config.products.sweep.operations:
        covering: list[dict[str, Any]] = []
        for arm in {plan.arm_runs[arm][0].id: arm for _, _, arm in variants(plan)}.values():  # some share a run
            at = _covered(plan, scores, arm, budget)
            if at is not None:
                s = plan.arm_runs[arm][0].settings
                sizes = {"experts": s.experts, "n_pert": s.n_pert, "batch": s.batch * s.accumulation}
                covering.append({"operations": budget, "arm": arm} | sizes | averaged(plan, arm, at))
        best = min(covering, key=lambda row: float(row["loss"]), default=None) if len(covering) > 1 else None
        out += [row | {"best": row is best} for row in covering]
    return pd.DataFrame(out)


def fixed_total_arms(plan: Plan) -> dict[int, str]:
    """Return the SPSA arms of equal total size with the n_pert of SOMA's arm, by their number of experts."""
    product = plan.config.products.fixed_size
    n_pert = plan.arms[product.soma].n_pert
    arms = [arm for arm in product.arms if plan.arms[arm].method == "spsa" and plan.arms[arm].n_pert == n_pert]
    return dict(sorted((plan.arms[arm].experts, arm) for arm in arms))


def best_counts(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Find the best N of equal total size on a grid of total budgets and budgets per expert (Figure 14).

    Under a total budget C and a budget D per expert, N experts can spend min(C, N D) operations. N is a candidate where
    its curve covers them; where fewer than two are, the map is blank.

    Args:
        rows: per-document validation losses of the arms of equal total size.

    Returns:
        One row per cell with `best`, its `loss`, the `second` best, and `difference`, the best minus the second, with
        its intervals over documents and over the seeds that both have.
    """
    scores, arms = scores_of(plan, rows), fixed_total_arms(plan)
    runs = {n: plan.arm_runs[arm][0] for n, arm in arms.items()}
    starts = {n: float(run.operations(run.milestones[0])) for n, run in runs.items()}
    ends = {n: float(run.operations(run.updates)) for n, run in runs.items()}
    out: list[dict[str, Any]] = []
    for total in np.geomspace(min(starts.values()), max(ends.values()), CELLS):
        for each in np.geomspace(min(s / n for n, s in starts.items()), max(e / n for n, e in ends.items()), CELLS):
            covering = {n: at for n, arm in arms.items() if (at := _covered(plan, scores, arm, min(total, n * each)))}
            if len(covering) < 2:
                continue
            best, second, *_ = sorted(covering, key=lambda n: np.mean([loss for loss, _, _ in covering[n].values()]))
            cell = {"total": total, "per_expert": each, "best": best, "second": second}
            loss = averaged(plan, arms[best], covering[best])["loss"]
            out.append(
                cell | {"loss": loss} | _difference(plan, covering[best], covering[second], arms[best], arms[second])
            )
    return pd.DataFrame(out)


def per_expert(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compare every N of equal total size with the fewest experts at equal work per expert (C15).

    Args:
        rows: per-document validation losses of the arms of equal total size.

    Returns:
        One row per N above the smallest: `operations` of an expert, the most that both have reached, the loss of each
        (`loss`, `other`), and their `difference` with its intervals.
    """
    scores, arms = scores_of(plan, rows), fixed_total_arms(plan)
    (few, base), *more = arms.items()
    out: list[dict[str, Any]] = []
    for n, arm in more:
        ends = [plan.arm_runs[either][0] for either in (base, arm)]
        each = min(float(run.operations(run.updates)) / run.experts for run in ends)
        ours, theirs = _covered(plan, scores, arm, n * each), _covered(plan, scores, base, few * each)
        if ours is None or theirs is None:
            continue
        where = {"experts": n, "fewest": few, "arm": arm, "operations": each}
        losses = {"loss": averaged(plan, arm, ours)["loss"], "other": averaged(plan, base, theirs)["loss"]}
        out.append(where | losses | _difference(plan, ours, theirs, arm, base))
    return pd.DataFrame(out)


def _covered(plan: Plan, scores: Scores, arm: str, operations: float) -> AtBudget | None:
    """Return an arm's loss at a budget; None if the curve of one of its seeds does not cover it."""
    at = at_budget(plan, scores, arm, operations)
    return at if len(at) == len(plan.arm_runs[arm]) else None


def _difference(plan: Plan, ours: AtBudget, theirs: AtBudget, our_arm: str, their_arm: str) -> dict[str, Any]:
    """Return the columns of the difference of two arms at their budgets, and the runs behind it."""
    seeds = shared_seeds(plan, our_arm, their_arm)
    runs = [run.id for arm in (our_arm, their_arm) for run in plan.arm_runs[arm] if run.seed in seeds]
    return difference_at(ours, theirs) | {"run": " ".join(runs)}


def _mean(values: pd.Series, runs: Any, update: int, quantity: str) -> float:
    return float(np.mean([values.loc[(run.id, update, quantity)] for run in runs]))


def allocation(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the final test loss of every continuation, and its difference from every other.

    Returns:
        One row per continuation with its own loss (`loss`, `loss_low` ...), where `arm` is `other` and `difference` is
        missing, then one row per pair with `difference`, the loss of `arm` minus that of `other`, and its intervals.
    """
    arms = plan.config.products.allocation.arms
    scores = scores_of(plan, rows)
    out = []
    for arm in arms:
        run = plan.arm_runs[arm][0]
        s = run.settings
        row = {
            "other": arm,
            "n_pert": s.n_pert,
            "batch": s.batch * s.accumulation,
            "updates": run.updates,
            "operations": float(run.operations(run.updates)),
        }
        out.append(row | own_loss(plan, scores, Side(arm)))
    for arm, other in itertools.combinations(arms, 2):
        out.append({"arm": arm, "other": other} | contrast(plan, scores, Side(arm), Side(other)))
    return pd.DataFrame(out)


def neighbours(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C8 claims: more is better at equal updates, and fewer experts better at a small total."""
    out = [
        difference_of(row, f"{AXES[row.axis]}={row.larger} minus {row.smaller}, equal updates")
        for row in rows[rows["axis"].isin(list(AXES))].itertuples()
    ]
    for row in rows[(rows["axis"] == "aggregate") & (rows["seeds"] > 0)].itertuples():
        out.append(difference_of(row, f"N={row.smaller} minus N={row.larger}, equal small total"))
    return out


def equal_work_per_expert(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C15 claims: the most experts better than the fewest at equal work per expert."""
    return [
        difference_of(row, f"N={row.experts} minus N={row.fewest}, equal total size and work per expert")
        for row in rows.tail(1).itertuples()
    ]


def equal_continuations(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C14 claims: for every pair, losses that are no further apart than the margin, the paper's spread."""
    margin = plan.config.products.allocation.margin
    out = []
    for row in rows[rows["difference"].notna()].itertuples():
        name = f"distance of {row.arm} and {row.other}, less {margin:.5f}"
        (low, high), (seed_low, seed_high) = (_distance(row, prefix, margin) for prefix in ("", "seed_"))
        mean = abs(row.difference) - margin
        out.append(Difference(name, mean, low, high, seed_low, seed_high, int(row.seeds), row.run))
    return out


def _distance(row: Any, prefix: str, margin: float) -> tuple[float, float]:
    """Compute the interval of |difference| less a margin from the interval of the difference."""
    low, high = getattr(row, f"{prefix}low"), getattr(row, f"{prefix}high")
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return least - margin, max(abs(low), abs(high)) - margin


def with_cheapest(plan: Plan, swept: pd.DataFrame) -> pd.DataFrame:
    """Return the swept splits of n_pert and B once each, marking in `cheapest` those on the Pareto front.

    Args:
        swept: rows of `curves`.

    Returns:
        The rows with `n_pert`, `batch` (accumulated) and `cheapest`, true if no other reached the loss with fewer
        operations, at operations that the curves of at least two cover.
    """
    own = swept[swept["axis"].isin(["n_pert", "batch"])].copy()
    settings = {arm: plan.arm_runs[arm][0].settings for arm in own["arm"].unique()}
    own["n_pert"] = [settings[arm].n_pert for arm in own["arm"]]
    own["batch"] = [settings[arm].batch * settings[arm].accumulation for arm in own["arm"]]
    # The base setting is swept on both axes.
    own = own.drop_duplicates(["n_pert", "batch", "update"]).sort_values(["n_pert", "batch", "update"])
    ordered = own.sort_values(["operations", "loss"])
    lowest = ordered["loss"].lt(ordered["loss"].cummin().shift(fill_value=np.inf))
    spans = own.groupby(["n_pert", "batch"])["operations"].agg(["min", "max"])
    covering = ordered["operations"].map(lambda spent: int(((spans["min"] <= spent) & (spent <= spans["max"])).sum()))
    own["cheapest"] = lowest & (covering > 1)
    return own
