"""Selection of the best of several settings, shared by the search tables and the step that chooses what to test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def outcome(plan: Plan, rows: pd.DataFrame, arm: str, update: int | None = None) -> dict[str, Any]:
    """Compute the loss of a setting over its seeds; a run without a finite loss is a failure.

    Args:
        update: milestone; None means the end of the budget.

    Returns:
        `loss`, the mean over seeds, `sd`, their sample standard deviation, `seed_low` and `seed_high`, the 95 %
        interval over seeds, `seeds`, `failed` runs, and the ids of all (`run`).
    """
    runs = plan.arm_runs[arm]
    losses = np.array([loss_at(rows, run, update or run.updates, plan.arms[arm].active) for run in runs])
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


def mark_chosen(candidates: Sequence[dict[str, Any]], values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add `chosen` to the rows of a search, and to the chosen one the keys at whose edge it lies (`edge`).

    Args:
        candidates: one row per setting with its `loss`.
        values: values of each setting; a key of numbers has an edge if more than one value was tried.
    """
    losses = [row["loss"] for row in candidates]
    best = None if np.isnan(losses).all() else int(np.nanargmin(losses))
    ends = []
    for key in values[0] if best is not None else ():
        tried = {value[key] for value in values}
        numbers = all(isinstance(value, int | float) for value in tried)
        if best is not None and numbers and len(tried) > 1 and values[best][key] in (min(tried), max(tried)):
            ends.append(key)
    return [
        row | {"chosen": i == best, "edge": " and ".join(ends) if i == best else ""} for i, row in enumerate(candidates)
    ]
