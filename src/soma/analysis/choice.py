"""Selection of the best of several settings, shared by the search tables and the step that chooses what to test."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.analysis.bootstrap import seed_interval
from soma.errors import SomaError
from soma.plan import Plan
from soma.runs import RunSpec


def final_loss(rows: pd.DataFrame, run: RunSpec, active: int) -> float:
    """Return nats per byte of the last iterate at the end of a run's budget, as `loss_at`."""
    return loss_at(rows, run, run.updates, active)


def loss_at(rows: pd.DataFrame, run: RunSpec, update: int, active: int) -> float:
    """Return nats per byte of the last iterate after an update, with `active` experts averaged.

    Args:
        rows: per-document losses (`rows.COLUMNS`).
    """
    own = rows[
        (rows["run"] == run.id) & (rows["update"] == update) & (rows["iterate"] == "last") & (rows["k"] == active)
    ]
    # A sum that skips NaN would give a failed run the lowest loss of all.
    return float(own["nats"].sum(skipna=False) / own["bytes"].sum()) if len(own) else float("nan")


def mean_loss(losses: Sequence[float] | NDArray[np.float64]) -> float:
    """Average the loss of a setting over its seeds; NaN if one of its runs failed."""
    return float(np.mean(losses)) if np.isfinite(losses).all() else float("nan")


def lowest(losses: Sequence[float], base: str) -> int:
    """Return the index of the setting with the lowest loss, the first if several are equal.

    Raises:
        SomaError: if every setting of the arm `base` failed.
    """
    if np.isnan(losses).all():
        raise SomaError(f"every setting of `{base}` that was tried failed; lower the rates or steps that are tried.")
    return int(np.nanargmin(losses))


def picks(losses: NDArray[np.float64], each_seed: bool, base: str) -> list[int]:
    """Return the index of the chosen setting for every seed: by the mean over seeds, or by each seed's own loss.

    Args:
        losses: [settings, seeds]; NaN where a run failed.

    Raises:
        SomaError: if every setting of the arm `base` failed.
    """
    if each_seed:
        return [lowest(column, base) for column in losses.T]
    return [lowest([mean_loss(row) for row in losses], base)] * losses.shape[1]


def outcome(plan: Plan, rows: pd.DataFrame, arm: str, update: int | None = None) -> dict[str, Any]:
    """Compute the loss of a setting over its seeds; a run without a finite loss is a failure.

    Args:
        update: milestone; None means the end of the budget.

    Returns:
        `loss`, the mean over seeds, `sd`, their sample standard deviation, `seed_low` and `seed_high`, the 95 %
        interval over seeds, `seeds`, `failed` runs, and the ids of all (`run`).
    """
    runs, losses = plan.arm_runs[arm], losses_of(plan, rows, arm, update)
    finite = np.isfinite(losses)
    whole = bool(finite.all())
    interval = seed_interval(losses) if whole else None
    return {
        "loss": mean_loss(losses),
        "sd": float(losses.std(ddof=1)) if whole and len(losses) > 1 else float("nan"),
        "seed_low": interval.low if interval else float("nan"),
        "seed_high": interval.high if interval else float("nan"),
        "seeds": len(losses),
        "failed": int((~finite).sum()),
        "run": " ".join(run.id for run in runs),
    }


def losses_of(plan: Plan, rows: pd.DataFrame, arm: str, update: int | None = None) -> NDArray[np.float64]:
    """Return the loss of every seed of a setting, [seeds]; arguments as of `outcome`."""
    active = plan.arms[arm].active
    return np.array([loss_at(rows, run, update or run.updates, active) for run in plan.arm_runs[arm]])


def mark_chosen(
    candidates: Sequence[dict[str, Any]], values: Sequence[Mapping[str, Any]], chosen: Collection[int]
) -> list[dict[str, Any]]:
    """Add `chosen` to the rows of a search, and to a chosen one the keys at whose edge it lies (`edge`).

    Args:
        candidates: one row per setting.
        values: values of each setting; a key of numbers has an edge if more than one value was tried.
        chosen: indices of the chosen settings.
    """
    edges = {key: (min(tried), max(tried)) for key in values[0] if len(tried := _numbers(values, key)) > 1}
    return [
        row
        | {"chosen": i in chosen}
        | {"edge": " and ".join(key for key, ends in edges.items() if value[key] in ends) if i in chosen else ""}
        for i, (row, value) in enumerate(zip(candidates, values, strict=True))
    ]


def _numbers(values: Sequence[Mapping[str, Any]], key: str) -> set[float]:
    """Return the values of a key, or none if one of them is no number."""
    tried = {value[key] for value in values}
    return tried if all(isinstance(value, int | float) for value in tried) else set()
