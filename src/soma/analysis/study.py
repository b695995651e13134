"""Statements of a configuration about trained arms (`products.study`), as paired differences of test losses."""

from __future__ import annotations

from typing import Any

import pandas as pd

from soma.analysis.contrasts import Side, contrast, scores_of
from soma.config.products import Compared
from soma.plan import Plan


def differences(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the differences of every statement at the ends of the budgets, over the seeds that both sides have.

    Args:
        rows: per-document test losses of the arms.

    Returns:
        One row per (`question`, `ours`, `theirs`) with the columns of `contrasts.contrast`, the operations of `ours`
        and the `unit`.
    """
    scores, out = scores_of(plan, rows), []
    for name, statement in plan.config.products.study.statements.items():
        for pair in statement.differences:
            run = plan.arm_runs[pair.ours.arm][0]
            where: dict[str, Any] = {"question": name, "ours": pair.ours.name, "theirs": pair.theirs.name}
            where |= {"operations": float(run.operations(run.updates)), "unit": "nats per byte"}
            out.append(where | contrast(plan, scores, _side(pair.ours), _side(pair.theirs)))
    return pd.DataFrame(out)


def _side(side: Compared) -> Side:
    return Side(side.arm, iterate=side.iterate, k=1 if side.nearest else None)
