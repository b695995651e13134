"""Ablations under backpropagation (Figure 9, claim C12): on test at the end, on expert validation during training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from soma.analysis.contrasts import (
    against,
    scores_of,
)
from soma.analysis.verdict import Difference, difference_of
from soma.plan import Plan


def ablation(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the test loss of every ablation, and the base's loss minus its own; one row per arm, the base first."""
    base, scores = plan.config.products.ablation.base, scores_of(plan, rows)
    return pd.DataFrame([{"group": group} | against(plan, scores, base, arm) for group, arm in _grouped(plan)])


def curves(plan: Plan, histories: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Compute the expert validation loss of every arm and seed at every check, averaged over its experts.

    Every expert is validated on its own shard's held-out windows, so that arms on other shards are validated on other
    text; arms on the same shards have the same text.
    """
    out = []
    for group, arm in _grouped(plan):
        for run in plan.arm_runs[arm]:
            means = histories[run.id].groupby("update")["expert_validation"].mean().rename("loss").reset_index()
            out.append(means.assign(group=group, arm=arm, seed=run.seed, run=run.id))
    return pd.concat(out, ignore_index=True)


def overtaken(plan: Plan, rows: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Find when the base and an ablation change their order for the last time, for every seed that both have.

    Args:
        rows: rows of `curves`.

    Returns:
        One row per seed: `first`, base minus ablation at the first check, `last`, at the last, and `update`, where the
        line between two checks crosses zero for the last time; NaN where it never does.
    """
    own = {name: rows[rows["arm"] == name] for name in (plan.config.products.ablation.base, arm)}
    base, other = (frame.pivot_table(index="update", columns="seed", values="loss") for frame in own.values())
    out = []
    for seed, gap in (base - other).dropna(axis=1, how="all").items():
        gap = gap.dropna()
        x, y = gap.index.to_numpy(float), gap.to_numpy()
        turns = np.flatnonzero(np.sign(y[1:]) != np.sign(y[:-1]))
        i = turns[-1] if len(turns) else None
        update = float("nan") if i is None else x[i] + (x[i + 1] - x[i]) * y[i] / (y[i] - y[i + 1])
        out.append({"seed": seed, "first": y[0], "last": y[-1], "update": update})
    return pd.DataFrame(out, columns=["seed", "first", "last", "update"])


def _grouped(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what every arm changes (`partition`, `start` or `head`) and the arm, the base first."""
    product = plan.config.products.ablation
    yield "base", product.base
    for group in ("partition", "start", "head"):
        for arm in getattr(product, group):
            yield group, arm


def base_minus_ablation(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C12 claims: the base better than every ablation."""
    (base,) = rows.loc[rows["group"] == "base", "run"]
    own = rows[rows["group"] != "base"].assign(run=lambda table: f"{base} " + table["run"])
    return [difference_of(row, f"base minus {row.arm}") for row in own.itertuples()]
