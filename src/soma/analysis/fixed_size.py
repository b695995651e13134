"""The comparison at equal total size (Figure 1, Tables 4 and 9, claims C1a to C2b)."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from soma.analysis.bootstrap import interval_columns, percentile_interval
from soma.analysis.contrasts import (
    Side,
    contrast,
    loss_row,
    scores_of,
)
from soma.analysis.scores import Scores
from soma.analysis.verdict import Difference, difference_of
from soma.evaluation.rows import NGRAMS
from soma.plan import Plan
from soma.runs import ITERATES


def losses(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the losses of every arm.

    Args:
        rows: per-document losses of all runs on all sets (`evaluate.COLUMNS`).

    Returns:
        One row per (set, split, arm, seed, update, iterate, k); `seed` is missing in the mean over seeds. `low` and
        `high` bound the 95 % interval over documents, `seed_low` and `seed_high` the interval over seeds.
    """
    out = [
        where | row
        for where, scores in _by_set(plan, rows)
        for arm in plan.config.products.fixed_size.arms
        for row in _arm_losses(plan, arm, scores)
    ]
    return pd.DataFrame(out).astype({"seed": "Int64"})


def differences(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute SOMA minus each other arm at the end of the budget, one row per (set, split, other arm, iterate)."""
    product = plan.config.products.fixed_size
    out = [
        where
        | {"soma": product.soma, "other": other, "iterate": iterate}
        | contrast(plan, scores, Side(product.soma, iterate=iterate), Side(other, iterate=iterate))
        for where, scores in _by_set(plan, rows)
        for other in (*product.against, *product.also)
        for iterate in ITERATES
    ]
    return pd.DataFrame(out)


def ngrams(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the loss of every n-gram model, one row per (set, split, model), with its interval over documents.

    Args:
        rows: per-document losses (`soma.evaluation.ngrams`).
    """
    out = []
    for where, scores in _by_set(plan, rows):
        for model in NGRAMS:
            mean, draws = scores.loss([(model, 0, "last", 1)])
            interval = percentile_interval(float(mean[0]), draws[:, 0])
            out.append(where | {"model": model} | interval_columns("loss", interval, None))
    return pd.DataFrame(out)


ALLOWED = 0.02
"""Relative difference up to which weights count as having the RMS of noise."""


def is_noise(walk: pd.DataFrame) -> pd.Series:
    """Return for each run if its weights and last updates cannot be told from noise.

    That is so if the RMS of its weights is within `ALLOWED` of what noise gives, and the 95 % interval of the agreement
    between both halves of the population holds zero.

    Args:
        walk: rows of the measurement `walk`.
    """
    from scipy.special import stdtrit  # imported here because it takes long

    near = (walk["rms"] / walk["noise_rms"] - 1).abs() <= ALLOWED
    errors = walk["agreement_se"] * stdtrit(walk["updates"] - 1, 0.975)
    return near & (walk["agreement"].abs() <= errors)


def _by_set(plan: Plan, rows: pd.DataFrame) -> Iterator[tuple[dict[str, object], Scores]]:
    for (set_, split), group in rows.groupby(["set", "split"], sort=True):
        scores = scores_of(plan, group)
        yield {"set": set_, "split": split, "documents": scores.documents, "bytes": scores.bytes}, scores


def _arm_losses(plan: Plan, arm: str, scores: Scores) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    runs = plan.arm_runs[arm]
    for update in runs[0].milestones:
        for iterate in ITERATES:
            for k in plan.active_counts(arm):
                mean, draws = scores.loss([(run.id, update, iterate, k) for run in runs])
                operations = float(runs[0].operations(update))  # 64 bits overflow at the paper's sizes
                base = {"arm": arm, "update": update, "operations": operations, "iterate": iterate, "k": k}
                for i, run in enumerate(runs):
                    interval = percentile_interval(float(mean[i]), draws[:, i])
                    out.append(
                        base | {"run": run.id, "seed": run.seed, "seeds": 1} | interval_columns("loss", interval, None)
                    )
                out.append(base | {"seed": None} | loss_row(plan, scores, Side(arm, update, iterate, k)))
    return out


def against_spsa(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C1a claims: SOMA better than each monolithic SPSA arm that it is compared with, on test."""
    return _differences_on(plan, rows, "test", "spsa")


def against_eggroll(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C1b claims: SOMA better than EGGROLL, on test."""
    return _differences_on(plan, rows, "test", "eggroll")


def on_external_text_against_spsa(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C2a claims: C1a on external text, for each of its splits."""
    return _differences_on(plan, rows, "external", "spsa")


def on_external_text_against_eggroll(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C2b claims: C1b on external text, for each of its splits."""
    return _differences_on(plan, rows, "external", "eggroll")


def _differences_on(plan: Plan, rows: pd.DataFrame, set_: str, method: str) -> list[Difference]:
    against = [arm for arm in plan.config.products.fixed_size.against if plan.arms[arm].method == method]
    own = rows[(rows["set"] == set_) & (rows["iterate"] == "last") & rows["other"].isin(against)]
    splits = own["split"].nunique() > 1
    return [difference_of(r, f"SOMA minus {r.other}" + (f" ({r.split})" if splits else "")) for r in own.itertuples()]
