"""Losses under one total of operations that pays for everything: seed run, routing, training, and choosing.

For every total, each run takes the milestone with the lowest ensemble-validation loss among those it can pay for. The
milestone after which it stops is chosen on validation alone; test is read at the chosen one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.contrasts import beside_difference, difference_row, loss_columns, scores_of, shared_seeds
from soma.analysis.scores import Key, Scores
from soma.errors import SomaError
from soma.models.count import operations_per_token
from soma.plan import Plan
from soma.runs import RunSpec


def charged_operations(plan: Plan, run: RunSpec, update: int, k: int, validation_bytes: int) -> dict[str, float]:
    """Count what a run has cost after an update, by what it paid for.

    Args:
        k: experts averaged where it is validated.
        validation_bytes: scored bytes of ensemble validation.

    Returns:
        `training`; `seed run`; `routing`, an upper bound of the features of its text (every byte begins one, and each
        is projected on all components, once for training and once for every window that is validated) and of the
        distances to all centres; `validation`, the averaged experts on whole windows of ensemble validation at every
        milestone so far, and the checks of the schedule, with the forwards of all experts.
    """
    c, s = plan.config, run.settings
    start = plan.runs[run.start] if run.start else None
    of_byte = operations_per_token(run.model)
    milestones = sum(milestone <= update for milestone in run.milestones)
    windows = validation_bytes // (c.data.window - c.data.prefix)
    read = windows * c.data.window * milestones
    checks = s.plateau.windows * c.data.window * run.experts * (update // s.plateau.every)
    drawn = update * s.batch * s.accumulation * run.experts * s.crop
    features = 2 * c.routing.svd * (drawn + windows * milestones * c.data.prefix) if run.clusters else 0
    centres = 2 * c.routing.svd * run.experts * (drawn // c.data.window + windows * milestones) if run.clusters else 0
    return {
        "training": float(run.operations(update)),
        "seed run": float(start.operations(start.updates)) if start else 0.0,
        "routing": float(features + centres),
        "validation": float((k * read + checks) * of_byte),
    }


def curves(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the test loss of every arm under every total that all of its seeds can pay for.

    Args:
        rows: per-document losses of the product's arms on validation and test.

    Returns:
        One row per (operations, arm) with the test loss at the milestones chosen on validation (`loss_low` ... bound
        it), `updates`, the mean of these, `share`, the part of what was spent that is not training, and, of all but
        the first arm, `difference`, the first arm's loss minus this one's over shared seeds; missing where the first
        cannot pay.

    Raises:
        SomaError: if no total pays for anything.
    """
    product = plan.config.products.charged
    validation, test = (scores_of(plan, rows[rows["set"] == name]) for name in ("validation", "test"))
    out: list[dict[str, Any]] = []
    for total in product.operations:
        keys = {arm: _chosen(plan, validation, arm, total) for arm in product.arms}
        for arm, own in keys.items():
            if len(own) < len(plan.arm_runs[arm]):
                continue
            runs = [plan.runs[key[0]] for key in own.values()]
            loss, draws = test.loss([*own.values()])
            row = beside_difference(loss_columns(loss, draws))
            spent = [
                charged_operations(plan, plan.runs[key[0]], key[1], key[3], validation.bytes) for key in own.values()
            ]
            overhead = [1 - each["training"] / sum(each.values()) for each in spent]
            row |= {"operations": total, "arm": arm, "updates": float(np.mean([key[1] for key in own.values()]))}
            row |= {"share": float(np.mean(overhead)), "seeds": len(own), "run": " ".join(run.id for run in runs)}
            row["difference"] = float("nan")
            base = keys[product.arms[0]]
            if arm != product.arms[0] and len(base) == len(plan.arm_runs[product.arms[0]]):
                seeds = shared_seeds(plan, product.arms[0], arm)
                (ours, our_draws), (theirs, their_draws) = (
                    test.loss([side[seed] for seed in seeds]) for side in (base, own)
                )
                row |= difference_row(ours - theirs, our_draws - their_draws)
            out.append(row)
    if not out:
        raise SomaError("no total pays for a milestone of any arm; raise products.charged.operations.")
    return pd.DataFrame(out)


def _chosen(plan: Plan, validation: Scores, arm: str, total: float) -> dict[int, Key]:
    """Return, by seed, the milestone with the lowest validation loss among those that the total pays for."""
    out: dict[int, Key] = {}
    k = plan.arms[arm].active
    for run in plan.arm_runs[arm]:
        paid = [
            (run.id, update, "last", k)
            for update in run.milestones
            if sum(charged_operations(plan, run, update, k, validation.bytes).values()) <= total
        ]
        if paid:
            losses, _ = validation.loss(paid)
            out[run.seed] = paid[int(losses.argmin())]
    return out
