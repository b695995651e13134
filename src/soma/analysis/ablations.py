"""Ablations under backpropagation (Figure 9, claim C12), on test."""

from __future__ import annotations

import pandas as pd

from soma.analysis.contrasts import (
    against,
    scores_of,
)
from soma.analysis.verdict import Difference, difference_of
from soma.plan import Plan


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


def base_minus_ablation(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C12 claims: the base better than every ablation."""
    return [difference_of(row, f"base minus {row.arm}") for row in rows[rows["group"] != "base"].itertuples()]
