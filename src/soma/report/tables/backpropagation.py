"""Zeroth-order training against backpropagation: Table 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from soma.analysis.verdict import difference_of
from soma.plan import Plan
from soma.report.labels import (
    SEED_NOTE,
    difference_cells,
    watermark_notes,
)
from soma.report.paper import PaperValues
from soma.report.table import NOT_RUN, Cell, Table, interpolated, number, with_interval


def table5(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Compare zeroth-order training with backpropagation on ensemble validation."""
    theirs = {row["n"]: row for row in paper.tables["table5"]}
    cells: list[tuple[Cell, ...]] = []
    for row in rows.itertuples():
        cells.append(
            (
                Cell(str(row.experts), "set", row.experts),
                number(float(row.operations), "set", -1),
                _at_budget(row, "zeroth_order"),
                _at_budget(row, "bptt"),
                *difference_cells(difference_of(row)),
                *_hours(theirs.get(row.experts, {})),
            )
        )
    for n in sorted(theirs.keys() - set(rows["experts"])):
        cells.append((Cell(str(n), "paper", n), *[NOT_RUN] * 5, *_hours(theirs[n])))
    columns = (
        "N", "operations", "zeroth-order", "BPTT", "BPTT minus zeroth-order", "over seeds",
        "SOMA (paper; 50, 75, 100 GPU-h)", "BPTT (paper; 50, 75, 100 GPU-h)",
    )  # fmt: skip
    notes = (
        "Ensemble validation, nats per byte, last iterate, mean over seeds; brackets: 95 % paired bootstrap interval "
        f"over documents. {SEED_NOTE} A backward pass counts as two forwards.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def _at_budget(row: Any, name: str) -> Cell:
    value, low, high, between, runs = (
        getattr(row, f"{name}{end}") for end in ("", "_low", "_high", "_interpolated", "_runs")
    )
    return NOT_RUN if pd.isna(value) else interpolated(with_interval(value, low, high, runs), between)


def _hours(row: Mapping[str, Any]) -> tuple[Cell, Cell]:
    """Return the paper's losses of both methods at its three budgets."""
    if not row:
        return number(None, "paper"), number(None, "paper")
    by_method = [[row[budget][method] for budget in ("h50", "h75", "h100")] for method in ("soma", "bptt")]
    soma, bptt = (Cell(", ".join(f"{loss:.4f}" for loss in losses), "paper", losses[-1]) for losses in by_method)
    return soma, bptt
