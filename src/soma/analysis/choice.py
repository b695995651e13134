"""Selection of the best of several settings, shared by the search tables and the step that chooses what to test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.errors import SomaError
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
