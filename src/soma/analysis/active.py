"""Number of experts to average (Figure 16, claim C10), on ensemble validation."""

from __future__ import annotations

from typing import Any

import pandas as pd

from soma.analysis.contrasts import difference_row, loss_columns, scores_of
from soma.analysis.scores import Scores
from soma.plan import Plan


def losses(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the loss of every arm for every number k of active experts, averaged over seeds.

    Args:
        rows: the measurement's rows with `part` `active`: nats of every document under the nearest k experts.
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


def differences(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute for every arm k = 4 (or N) minus k = 1, and k = 4 minus the loss half-way from k = 1 to the best k.

    The best k is chosen on the same data, which can only make it look better than it is.
    """
    scores = _scores(plan, rows)
    means = losses(plan, rows).set_index(["arm", "k"])["loss"]
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
    return scores_of(
        plan, rows.assign(set="validation", split="", iterate="last", document=rows["document"].astype(int))
    )
