"""Longer state: what carrying it over windows changes, and whether a rare early event is remembered."""

from __future__ import annotations

from typing import Any

import pandas as pd

from soma.analysis.contrasts import Side, contrast, own_loss, scores_of
from soma.analysis.verdict import difference_over_seeds
from soma.plan import Plan


def carried(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute every arm's loss for every number of windows over which state is carried.

    Args:
        rows: rows of the measurement `carry`.

    Returns:
        One row per (arm, carried) with the loss (`loss_low` ... bound it) and, beyond the smallest number,
        `difference`, this loss minus that of the smallest number on the same bytes, with its intervals.
    """
    # The number of windows stands where scores have the number of active experts, which is the arm's own here.
    scores = scores_of(plan, rows.assign(set="validation", split="stretches", iterate="last", k=rows["carried"]))
    counts = sorted(int(count) for count in rows["carried"].unique())
    out: list[dict[str, Any]] = []
    for arm in arms_of(plan, rows):
        for count in counts:
            row = {"carried": count} | own_loss(plan, scores, Side(arm, k=count))
            if count > counts[0]:
                row |= contrast(plan, scores, Side(arm, k=count), Side(arm, k=counts[0]))
            out.append(row | {"documents": scores.documents, "bytes": scores.bytes})
    return pd.DataFrame(out)


def recalled(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Average the measurement `recall` over seeds, one row per (distance, method).

    Returns:
        `loss`, and `difference`, the loss minus chance, with the interval over seeds: below zero the event was
        remembered. `correct`, `lr` (the rates chosen), `updates`, `operations` and `working_bytes` (the largest).
    """
    out: list[dict[str, Any]] = []
    for (distance, method), own in rows.groupby(["distance", "method"], sort=False):
        beyond = difference_over_seeds("", own["loss"] - own["chance"], [], "nats")
        ends = {name: getattr(beyond, name) for name in ("low", "high", "seed_low", "seed_high")}
        sizes = {name: own[name].max() for name in ("updates", "operations", "working_bytes", "parameters")}
        means = {name: own[name].mean() for name in ("loss", "chance", "correct")}
        rates = " or ".join(f"{rate:g}" for rate in sorted(own["lr"].unique()))
        where = {"distance": distance, "method": method, "lr": rates, "seeds": len(own), "run": ""}
        out.append(where | means | {"difference": beyond.mean, "interpolated": False} | ends | sizes)
    return pd.DataFrame(out)


def arms_of(plan: Plan, rows: pd.DataFrame) -> list[str]:
    """Return the arms of measured runs, in the order of the rows."""
    by_run = {run.id: arm for arm, runs in plan.arm_runs.items() for run in runs}
    return list(dict.fromkeys(by_run[run] for run in rows["run"].unique()))
