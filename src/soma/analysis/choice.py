"""Which of several settings is best: shared by the tables of the searches and the step that says what is tested."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.runs import RunSpec


def final_loss(rows: pd.DataFrame, run: RunSpec, active: int) -> float:
    """Nats per byte of the last iterate at the end of a run's budget, `active` experts averaged.

    Args:
        rows: per-document losses (`rows.COLUMNS`).
    """
    own = rows[
        (rows["run"] == run.id) & (rows["update"] == run.updates) & (rows["iterate"] == "last") & (rows["k"] == active)
    ]
    # A sum that skipped what is not a number would make a failure the best of all.
    return float(own["nats"].sum(skipna=False) / own["bytes"].sum()) if len(own) else float("nan")


def mean_loss(losses: Sequence[float] | NDArray[np.float64]) -> float:
    """The loss of a setting over its seeds; not a number if one of its runs failed."""
    return float(np.mean(losses)) if np.isfinite(losses).all() else float("nan")


def lowest(losses: Sequence[float], base: str) -> int:
    """The setting with the lowest loss; the first of equal ones.

    Raises:
        SomaError: every setting of the arm `base` failed.
    """
    if np.isnan(losses).all():
        raise SomaError(f"every setting of `{base}` that was tried failed; lower the rates or steps that are tried.")
    return int(np.nanargmin(losses))
