"""Losses of many runs on one set of documents, with shared bootstrap draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.analysis.bootstrap import DocumentBootstrap
from soma.errors import SomaError
from soma.numerics.rng import Stream

Key = tuple[str, int, str, int]
"""Run, update, iterate and number of active experts."""

_KEYS = ["run", "update", "iterate", "k"]


def at_end(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at the last update of their runs."""
    return rows[rows["update"] == rows.groupby("run")["update"].transform("max")]


class Scores:
    """The losses of every run on one set of documents, with their bootstrap draws."""

    def __init__(self, rows: pd.DataFrame, draws: int, stream: Stream) -> None:
        failed = sorted(set(rows.loc[rows["nats"].isna(), "run"]))
        if failed:
            raise SomaError(f"the loss of {failed[0]} is not a number, so it cannot be compared; lower its lr or eps.")
        table = rows.pivot_table(index="document", columns=_KEYS, values="nats", aggfunc="sum")
        weights = rows.groupby("document")["bytes"].first().loc[table.index].to_numpy(np.float64)
        if table.isna().any(axis=None):
            raise SomaError("the runs were not evaluated on the same documents; run the evaluate rule again for all.")
        self._nats = nats = table.to_numpy()
        self.documents, self.bytes = len(table), int(weights.sum())
        self._column: dict[Any, int] = {key: i for i, key in enumerate(table.columns)}
        self._means = nats.sum(axis=0) / weights.sum()
        self._draws = DocumentBootstrap(weights, draws, stream).ratios(nats)

    def loss(self, keys: Sequence[Key]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return losses [len(keys)] and draws [R, len(keys)]."""
        columns = [self._column[key] for key in keys]
        return self._means[columns], self._draws[:, columns]

    def by_document(self, keys: Sequence[Key]) -> NDArray[np.float64]:
        """Return nats summed over each document, [n, len(keys)]."""
        return self._nats[:, [self._column[key] for key in keys]]

    def at_budget(
        self, run: str, updates: Sequence[int], operations: Sequence[float], budget: float, iterate: str, k: int
    ) -> tuple[float, NDArray[np.float64], bool] | None:
        """Return a run's loss at a budget of operations or seconds, its draws [R], and True if it is interpolated.

        Interpolation is linear between the neighbouring milestones, draw by draw. The result is None before the first
        and after the last milestone: nothing is extrapolated.
        """
        if not operations[0] <= budget <= operations[-1] * (1 + 1e-3):
            return None
        mean, draws = self.loss([(run, update, iterate, k) for update in updates])
        weights = np.array([np.interp(budget, operations, row) for row in np.eye(len(operations))])
        return float(mean @ weights), draws @ weights, bool(weights.max() < 1 - 1e-9)
