"""Zeroth-order training against backpropagation at equal operations (Table 5, claim C16), on ensemble validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.bootstrap import percentile_interval
from soma.analysis.contrasts import at_budget, difference_at, scores_of
from soma.analysis.verdict import Difference, difference_of
from soma.plan import Plan


def compare(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the losses of both methods and their difference, one row per (N, budget).

    Args:
        rows: per-document losses of the arms on the validation set (`evaluate.COLUMNS`).

    Returns:
        `zeroth_order` and `bptt`: means over seeds, each with its interval over documents, missing if an arm has no
            milestones around the budget.
        `difference`: BPTT minus zeroth-order over the seeds that both have, with its interval over documents and, with
            two seeds or more, over seeds.
    """
    scores = scores_of(plan, rows)
    out: list[dict[str, Any]] = []
    for pair in plan.config.products.backpropagation.pairs:
        for budget in plan.config.products.backpropagation.operations:
            row: dict[str, Any] = {"experts": plan.arms[pair[0]].experts, "operations": budget}
            by_method = {}
            for name, arm in zip(("zeroth_order", "bptt"), pair, strict=True):
                by_method[name] = at_budget(plan, scores, arm, budget)
                values = list(by_method[name].values())
                mean = float(np.mean([v[0] for v in values])) if values else float("nan")
                draws = np.mean([v[1] for v in values], axis=0) if values else np.full(1, np.nan)
                interval = percentile_interval(mean, draws)
                row |= {name: mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
                row[f"{name}_interpolated"] = any(v[2] for v in values)
                row[f"{name}_runs"] = " ".join(r.id for r in plan.arm_runs[arm])
            row["run"] = f"{row['zeroth_order_runs']} {row['bptt_runs']}"
            row["interpolated"] = row["zeroth_order_interpolated"] or row["bptt_interpolated"]
            out.append(difference_at(by_method["bptt"], by_method["zeroth_order"]) | row)
    return pd.DataFrame(out)


def far_better(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C16 claims: backpropagation better for every N, at the largest budget that both reached."""
    out = []
    for n, group in rows[rows["seeds"] > 0].groupby("experts"):
        row = group.sort_values("operations").iloc[-1]
        out.append(difference_of(row, f"BPTT minus zeroth order, N={n}"))
    return out
