"""Paired differences between arms, with intervals over documents and over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.analysis.bootstrap import interval_columns, percentile_interval, seed_interval
from soma.analysis.scores import Key, Scores
from soma.errors import SomaError
from soma.numerics.rng import Stream
from soma.plan import Plan
from soma.runs import RunSpec


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    arm: str
    updates: int | None = None
    """Milestone; None means the end of the budget."""
    iterate: str = "last"
    k: int | None = None
    """Active experts; None means the arm's own k."""

    def key(self, plan: Plan, run: RunSpec) -> Key:
        return run.id, self.updates or run.updates, self.iterate, self.k or plan.arms[self.arm].active


AtBudget = dict[int, tuple[float, NDArray[np.float64], bool]]
"""Loss of an arm at a budget by seed, with its draws [R], and true if it lies between two milestones."""


def scores_of(plan: Plan, rows: pd.DataFrame) -> Scores:
    """Collect the losses of one set and split, with bootstrap draws that every analysis of that set shares."""
    where = rows[["set", "split"]].drop_duplicates()
    if len(where) != 1:
        raise ValueError("rows of more than one set; compare within a set")
    stream = Stream.named(plan.config.seed, "bootstrap", *(str(name) for name in where.iloc[0]))
    return Scores(rows, plan.config.bootstrap_draws, stream)


def shared_seeds(plan: Plan, *arms: str) -> list[int]:
    """Return the seeds that all arms have.

    Raises:
        SomaError: if there is none.
    """
    seeds = [s for s in plan.arms[arms[0]].seeds if all(s in plan.arms[arm].seeds for arm in arms)]
    if not seeds:
        raise SomaError(f"the arms {', '.join(f'`{a}`' for a in arms)} share no seed to be compared at; give them one.")
    return seeds


def contrast(plan: Plan, scores: Scores, ours: Side, theirs: Side) -> dict[str, Any]:
    """Compute our loss minus theirs over the seeds that both have."""
    keys = _shared_keys(plan, ours, theirs)
    (ours_mean, ours_draws), (theirs_mean, theirs_draws) = (scores.loss(k) for k in keys)
    runs = list(dict.fromkeys(key[0] for side in keys for key in side))
    return difference_row(ours_mean - theirs_mean, ours_draws - theirs_draws) | {"run": " ".join(runs)}


def documents_won(plan: Plan, scores: Scores, ours: Side, theirs: Side) -> int:
    """Count the documents on which our loss is the lower one in every seed that both have."""
    ours_nats, theirs_nats = (scores.by_document(keys) for keys in _shared_keys(plan, ours, theirs))
    return int((ours_nats < theirs_nats).all(axis=1).sum())


def _shared_keys(plan: Plan, *sides: Side) -> list[list[Key]]:
    """Return the keys of each side, for the seeds that all have."""
    seeds = shared_seeds(plan, *(side.arm for side in sides))
    return [[side.key(plan, run) for run in _runs(plan, side.arm, seeds)] for side in sides]


def difference_row(
    per_seed: NDArray[np.float64], draws: NDArray[np.float64], interpolated: bool = False
) -> dict[str, Any]:
    """Return the columns of a difference.

    Args:
        per_seed: [seeds]; draws: [R, seeds].
        interpolated: true if one of the losses lies between two milestones.
    """
    interval = percentile_interval(float(per_seed.mean()), draws.mean(axis=1))
    counts = {"seeds": len(per_seed), "seeds_won": int((per_seed < 0).sum()), "interpolated": interpolated}
    return interval_columns("difference", interval, seed_interval(per_seed)) | counts


def loss_row(plan: Plan, scores: Scores, side: Side) -> dict[str, Any]:
    """Compute the loss of an arm, averaged over its seeds."""
    runs = _runs(plan, side.arm, plan.arms[side.arm].seeds)
    mean, draws = scores.loss([side.key(plan, run) for run in runs])
    where = {"arm": side.arm, "seeds": len(runs), "run": " ".join(run.id for run in runs)}
    return where | loss_columns(mean, draws)


def own_loss(plan: Plan, scores: Scores, side: Side) -> dict[str, Any]:
    """Return `loss_row` with room for a difference beside it."""
    return beside_difference(loss_row(plan, scores, side))


def beside_difference(row: Mapping[str, Any]) -> dict[str, Any]:
    """Give the intervals of a loss other names (`loss_low` ...), so that a difference can stand beside it."""
    return {f"loss_{name}" if name in ("low", "high", "seed_low", "seed_high") else name: v for name, v in row.items()}


def loss_columns(per_seed: NDArray[np.float64], draws: NDArray[np.float64]) -> dict[str, Any]:
    """Return the columns of a loss averaged over seeds, with its intervals; arguments as in `difference_row`."""
    interval = percentile_interval(float(per_seed.mean()), draws.mean(axis=1))
    return interval_columns("loss", interval, seed_interval(per_seed))


def against(plan: Plan, scores: Scores, base: str, arm: str) -> dict[str, Any]:
    """Return an arm's loss as `own_loss` and, except for the base, the base minus the arm."""
    row = own_loss(plan, scores, Side(arm))
    if arm == base:
        return row
    return row | {key: value for key, value in contrast(plan, scores, Side(base), Side(arm)).items() if key != "run"}


def at_equal_cost(
    plan: Plan,
    scores: Scores,
    ours: Side,
    theirs: Side,
    cost: Mapping[str, Sequence[float]],
    where: Literal["early", "late"] = "late",
) -> dict[str, Any]:
    """Compute our loss minus theirs at equal cost.

    Args:
        cost: cumulative cost of every run at each of its milestones.
        where: `late` is the largest budget that both reached, `early` the smallest at which both have a milestone.

    Returns:
        The columns of `contrast`; if the two have no budget in common, `seeds` is 0 and all other numbers are NaN.
    """
    seeds = shared_seeds(plan, ours.arm, theirs.arm)
    at: tuple[AtBudget, AtBudget] = {}, {}
    runs: list[str] = []
    for pair in zip(*(_runs(plan, side.arm, seeds) for side in (ours, theirs)), strict=True):
        ends = min(cost[run.id][-1] for run in pair), max(cost[run.id][0] for run in pair)
        budget = ends[0] if where == "late" else ends[1]
        losses = []
        for side, run in zip((ours, theirs), pair, strict=True):
            _, _, iterate, k = side.key(plan, run)
            losses.append(scores.at_budget(run.id, run.milestones, cost[run.id], budget, iterate, k))
        if losses[0] is None or losses[1] is None:
            continue
        at[0][pair[0].seed], at[1][pair[0].seed] = losses[0], losses[1]
        runs += [run.id for run in pair]
    return difference_at(*at) | {"run": " ".join(runs)}


def at_budget(
    plan: Plan, scores: Scores, arm: str, budget: float, cost: Mapping[str, Sequence[float]] | None = None
) -> AtBudget:
    """Return an arm's loss at a budget, for those of its seeds whose curves cover it.

    Args:
        cost: cumulative cost of every run at each of its milestones; None means arithmetic operations.
    """
    by_seed: AtBudget = {}
    for run in plan.arm_runs[arm]:
        spent = [float(run.operations(update)) for update in run.milestones] if cost is None else cost[run.id]
        at = scores.at_budget(run.id, run.milestones, spent, budget, "last", plan.arms[arm].active)
        if at is not None:
            by_seed[run.seed] = at
    return by_seed


def averaged(plan: Plan, arm: str, at: AtBudget) -> dict[str, Any]:
    """Return the columns of an arm's loss at a budget over the seeds that cover it; if there is none, it is NaN."""
    means, draws, between = zip(*at.values(), strict=True) if at else ((np.nan,), (np.full(1, np.nan),), (False,))
    runs = " ".join(run.id for run in plan.arm_runs[arm] if run.seed in at)
    facts = {"interpolated": any(between), "seeds": len(at), "run": runs}
    return loss_columns(np.array(means), np.stack(draws, axis=1)) | facts


def difference_at(ours: AtBudget, theirs: AtBudget) -> dict[str, Any]:
    """Return the columns of our loss minus theirs at their budgets, over the seeds that both have.

    Returns:
        As `difference_row`; if the two share no seed, `seeds` is 0 and all other numbers are NaN.
    """
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        nothing = np.full(1, np.nan)
        return difference_row(nothing, nothing[None]) | {"seeds": 0}
    per_seed = np.array([ours[s][0] - theirs[s][0] for s in seeds])
    draws = np.stack([ours[s][1] - theirs[s][1] for s in seeds], axis=1)
    return difference_row(per_seed, draws, any(at[s][2] for at in (ours, theirs) for s in seeds))


def _runs(plan: Plan, arm: str, seeds: Sequence[int]) -> list[RunSpec]:
    by_seed = dict(zip(plan.arms[arm].seeds, plan.arm_runs[arm], strict=True))
    return [by_seed[seed] for seed in seeds]
