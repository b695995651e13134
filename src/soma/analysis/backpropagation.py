"""Zeroth-order training against backpropagation at equal operations (Table 5, claim C16), on ensemble validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.bootstrap import Interval, interval_columns, percentile_interval, seed_interval
from soma.analysis.scores import Scores
from soma.analysis.verdict import Difference, difference_of
from soma.numerics.rng import Stream
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
    stream = Stream.named(plan.config.seed, "bootstrap", "validation", "")
    scores = Scores(rows, plan.config.bootstrap_draws, stream)
    out: list[dict[str, Any]] = []
    for pair in plan.config.products.backpropagation.pairs:
        for budget in plan.config.products.backpropagation.operations:
            row: dict[str, Any] = {"experts": plan.arms[pair[0]].experts, "operations": budget}
            by_method = {}
            for name, arm in zip(("zeroth_order", "bptt"), pair, strict=True):
                by_method[name] = _by_seed(plan, scores, arm, budget)
                values = list(by_method[name].values())
                mean = float(np.mean([v[0] for v in values])) if values else float("nan")
                draws = np.mean([v[1] for v in values], axis=0) if values else np.full(1, np.nan)
                interval = percentile_interval(mean, draws)
                row |= {name: mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
                row[f"{name}_interpolated"] = any(v[2] for v in values)
                row[f"{name}_runs"] = " ".join(r.id for r in plan.arm_runs[arm])
            row["run"] = f"{row['zeroth_order_runs']} {row['bptt_runs']}"
            seeds = sorted(by_method["zeroth_order"].keys() & by_method["bptt"].keys())
            row["interpolated"] = row["zeroth_order_interpolated"] or row["bptt_interpolated"]
            out.append(row | _difference(by_method, seeds))
    return pd.DataFrame(out)


def _by_seed(plan: Plan, scores: Scores, arm: str, budget: float) -> dict[int, Any]:
    out = {}
    for run in plan.arm_runs[arm]:
        operations = [float(run.operations(u)) for u in run.milestones]
        at = scores.at_budget(run.id, run.milestones, operations, budget, "last", plan.arms[arm].active)
        if at is not None:
            out[run.seed] = at
    return out


def _difference(by_method: dict[str, dict[int, Any]], seeds: list[int]) -> dict[str, Any]:
    if not seeds:
        nothing = Interval(float("nan"), float("nan"), float("nan"))
        return interval_columns("difference", nothing, None) | {"seeds": 0}
    per_seed = np.array([by_method["bptt"][s][0] - by_method["zeroth_order"][s][0] for s in seeds])
    draws = np.mean([by_method["bptt"][s][1] - by_method["zeroth_order"][s][1] for s in seeds], axis=0)
    interval = percentile_interval(float(per_seed.mean()), draws)
    return interval_columns("difference", interval, seed_interval(per_seed)) | {"seeds": len(seeds)}


def far_better(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C16 claims: backpropagation better for every N, at the largest budget that both reached."""
    out = []
    for n, group in rows[rows["seeds"] > 0].groupby("experts"):
        row = group.sort_values("operations").iloc[-1]
        out.append(difference_of(row, f"BPTT minus zeroth order, N={n}"))
    return out
