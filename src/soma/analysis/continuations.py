"""Paired comparisons on test.

They compare independent and summed losses (Figure 4, claim C5), splits of a continuation's budget (Table 11, claim C14)
and the ablations under backpropagation (Figure 9, claim C12).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from soma.analysis.contrasts import Side, contrast, difference_row, loss_row, scores_of, shared_seeds
from soma.analysis.scores import Scores
from soma.plan import Plan
from soma.runs import RunSpec


def paired(plan: Plan, rows: pd.DataFrame, histories: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Compute independent minus summed losses at every milestone, early and late.

    Args:
        rows: per-document test losses of the four arms.
        histories: published history of every run, to check that both arms drew the same data and probes.

    Returns:
        One row per (phase, update), and one for the phase `early minus late`, with both losses, `difference` with its
        intervals, and `paired`, true if the hash chains of data and probes (training.learner) are equal throughout.
    """
    product = plan.config.products.paired
    scores = scores_of(plan, rows)
    out: list[dict[str, Any]] = []
    for phase, (independent, summed) in (("early", product.early), ("late", product.late)):
        same = _drew_the_same(plan, independent, summed, histories)
        for update in plan.arm_runs[independent][0].milestones:
            sides = [Side(arm, update) for arm in (independent, summed)]
            losses = [loss_row(plan, scores, side)["loss"] for side in sides]
            where = {"phase": phase, "update": update, "independent": losses[0], "summed": losses[1], "paired": same}
            out.append(where | contrast(plan, scores, *sides))
    out.append({"phase": "early minus late"} | _shrinks(plan, scores))
    return pd.DataFrame(out)


def _shrinks(plan: Plan, scores: Scores) -> dict[str, Any]:
    """Compute the difference at the end of the early runs minus the one at the end of the late runs."""
    product = plan.config.products.paired
    arms = (*product.early, *product.late)
    seeds = shared_seeds(plan, *arms)
    by_arm = [{run.seed: run for run in plan.arm_runs[arm]} for arm in arms]
    keys = [[Side(arm).key(plan, runs[s]) for s in seeds] for arm, runs in zip(arms, by_arm, strict=True)]
    (a, a_draws), (b, b_draws), (c, c_draws), (d, d_draws) = (scores.loss(k) for k in keys)
    runs = list(dict.fromkeys(key[0] for side in keys for key in side))
    return difference_row((a - b) - (c - d), (a_draws - b_draws) - (c_draws - d_draws)) | {"run": " ".join(runs)}


def _drew_the_same(plan: Plan, a: str, b: str, histories: Mapping[str, pd.DataFrame]) -> bool:
    seeds = shared_seeds(plan, a, b)
    columns = ["update", "expert", "data_sha256", "probes_sha256"]

    def drawn(run: RunSpec) -> pd.DataFrame:
        return histories[run.id][columns].sort_values(["update", "expert"]).reset_index(drop=True)

    runs = [{run.seed: run for run in plan.arm_runs[arm]} for arm in (a, b)]
    return all(drawn(runs[0][seed]).equals(drawn(runs[1][seed])) for seed in seeds)


def allocation(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the final test loss of every continuation, and the loss of the first minus its own.

    Returns:
        One row per arm; `difference` and its intervals are missing for the first.
    """
    arms = plan.config.products.allocation.arms
    scores = scores_of(plan, rows)
    out = []
    for arm in arms:
        run = plan.arm_runs[arm][0]
        s = run.settings
        row = {
            "n_pert": s.n_pert,
            "batch": s.batch * s.accumulation,
            "updates": run.updates,
            "operations": float(run.operations(run.updates)),
        }
        out.append(row | against(plan, scores, arms[0], arm))
    return pd.DataFrame(out)


def ablation(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the test loss of every ablation, and the base's loss minus its own; one row per arm, the base first."""
    product = plan.config.products.ablation
    scores = scores_of(plan, rows)
    groups = [("base", (product.base,)), ("partition", product.partition), ("start", product.start)]
    out = []
    for group, arms in (*groups, ("head", product.head)):
        for arm in arms:
            out.append({"group": group} | against(plan, scores, product.base, arm))
    return pd.DataFrame(out)


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


def against(plan: Plan, scores: Scores, base: str, arm: str) -> dict[str, Any]:
    """Return an arm's loss with its intervals (`loss_low` ...) and, except for the base, the base minus the arm."""
    row = loss_row(plan, scores, Side(arm))
    row |= {f"loss_{end}": row.pop(end) for end in ("low", "high", "seed_low", "seed_high")}
    if arm == base:
        return row
    return row | {key: value for key, value in contrast(plan, scores, Side(base), Side(arm)).items() if key != "run"}
