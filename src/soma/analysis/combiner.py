"""A learned gate over routed experts against their plain mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.contrasts import beside_difference, difference_row, loss_columns, scores_of
from soma.analysis.horizon import arms_of
from soma.plan import Plan


def compare(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute every rule's loss, and its difference from the plain mean of the same experts.

    Args:
        rows: rows of the measurement `combiner`.

    Returns:
        One row per (arm, rule) with the loss (`loss_low` ... bound it), `operations` to train the gate, their `share`
        of those that trained the experts and, of other rules than the mean, `difference` with its intervals.
    """
    # The rule stands where scores have the iterate, which is the last one here.
    scores = scores_of(plan, rows.assign(set="validation", split="combiner", iterate=rows["rule"]))
    out: list[dict[str, Any]] = []
    for arm in arms_of(plan, rows):
        runs, k = plan.arm_runs[arm], plan.arms[arm].active
        at = {r: scores.loss([(run.id, run.updates, r, k) for run in runs]) for r in rows["rule"].unique()}
        spent = rows[rows["run"].isin([run.id for run in runs])].groupby("rule")["operations"].mean()
        for rule, (loss, draws) in at.items():
            row = beside_difference(loss_columns(loss, draws))
            row |= {"arm": arm, "rule": rule, "k": k, "seeds": len(runs), "run": " ".join(run.id for run in runs)}
            trained = np.mean([float(run.operations(run.updates)) for run in runs])
            row |= {"operations": float(spent[rule]), "share": float(spent[rule] / trained)}
            if rule != "mean":
                row |= difference_row(loss - at["mean"][0], draws - at["mean"][1])
            out.append(row)
    return pd.DataFrame(out)
