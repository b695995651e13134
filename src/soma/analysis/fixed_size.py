"""The comparison at equal total size (Figure 1, Tables 4 and 9): losses with intervals, and paired differences."""

from __future__ import annotations

import pandas as pd

from soma.analysis.bootstrap import interval_columns, percentile_interval, seed_interval
from soma.analysis.scores import Scores
from soma.errors import SomaError
from soma.plan import Plan
from soma.rng import Stream


def summarise(plan: Plan, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Losses of every arm and its differences from the arm that the claim is about.

    Args:
        rows: per-document losses of all runs on all sets (`evaluate.COLUMNS`).

    Returns:
        losses: one row per (set, split, arm, seed, update, iterate, k); `seed` is missing in the mean over seeds.
            `low` and `high` bound the 95 % interval over documents, `seed_low` and `seed_high` the one over seeds.
        differences: one row per (set, split, other arm, iterate) at the end of the budget, SOMA minus the other,
            over the seeds that both have.
    """
    losses, differences = [], []
    product = plan.config.products.fixed_size
    for (set_, split), group in rows.groupby(["set", "split"], sort=True):
        stream = Stream.named(plan.config.seed, "bootstrap", str(set_), str(split))
        scores = Scores(group, plan.config.bootstrap_draws, stream)
        where = {"set": set_, "split": split, "documents": scores.documents, "bytes": scores.bytes}
        for arm in product.arms:
            losses += [where | row for row in _arm_losses(plan, arm, scores)]
        for other in (*product.against, *product.also):
            differences += [where | row for row in _arm_differences(plan, product.soma, other, scores)]
    return pd.DataFrame(losses).astype({"seed": "Int64"}), pd.DataFrame(differences)


def _arm_losses(plan: Plan, arm: str, scores: Scores) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    runs = plan.arm_runs[arm]
    for update in runs[0].milestones:
        for iterate in ("last", "average"):
            for k in plan.active_counts(arm):
                mean, draws = scores.loss([(run.id, update, iterate, k) for run in runs])
                base = {
                    "arm": arm, "update": update, "operations": runs[0].operations(update), "iterate": iterate, "k": k,
                }  # fmt: skip
                for i, run in enumerate(runs):
                    interval = percentile_interval(float(mean[i]), draws[:, i])
                    out.append(
                        base | {"run": run.id, "seed": run.seed, "seeds": 1} | interval_columns("loss", interval, None)
                    )
                interval = percentile_interval(float(mean.mean()), draws.mean(axis=1))
                ids = " ".join(run.id for run in runs)
                out.append(
                    base
                    | {"run": ids, "seed": None, "seeds": len(runs)}
                    | interval_columns("loss", interval, seed_interval(mean))
                )
    return out


def _arm_differences(plan: Plan, soma: str, other: str, scores: Scores) -> list[dict[str, object]]:
    ours, theirs = ({run.seed: run for run in plan.arm_runs[arm]} for arm in (soma, other))
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        raise SomaError(f"the arms `{soma}` and `{other}` share no seed, so they cannot be compared; give them one.")
    out: list[dict[str, object]] = []
    for iterate in ("last", "average"):
        keys = [
            [(runs[s].id, runs[s].updates, iterate, plan.arms[arm].active) for s in seeds]
            for arm, runs in ((soma, ours), (other, theirs))
        ]
        (mean_a, draws_a), (mean_b, draws_b) = scores.loss(keys[0]), scores.loss(keys[1])
        per_seed = mean_a - mean_b
        interval = percentile_interval(float(per_seed.mean()), (draws_a - draws_b).mean(axis=1))
        runs = " ".join(key[0] for key in keys[0] + keys[1])
        row = {"soma": soma, "other": other, "iterate": iterate, "seeds": len(seeds), "run": runs}
        wins = {"seeds_won": int((per_seed < 0).sum())}
        out.append(row | wins | interval_columns("difference", interval, seed_interval(per_seed)))
    return out
