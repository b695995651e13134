"""Zeroth-order training against backpropagation: Table 5."""

from __future__ import annotations

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
    cells: list[tuple[Cell, ...]] = []
    for row in rows.itertuples():
        cells.append(
            (
                Cell(str(row.experts), "set", row.experts),
                number(float(row.operations), "set", -1),
                _at_budget(row, "zeroth_order"),
                _at_budget(row, "bptt"),
                *difference_cells(difference_of(row)),
                *[number(None, "paper")] * 2,
            )
        )
    for given in paper.tables["table5"]:
        for name, losses in given.items():
            if name != "n":
                budget = Cell(f"{name.removeprefix('h')} GPU-hours", "paper", name)
                reported = [number(losses[method], "paper", 4) for method in ("soma", "bptt")]
                cells.append((Cell(str(given["n"]), "paper", given["n"]), budget, *[NOT_RUN] * 4, *reported))
    columns = (
        "N", "budget", "zeroth-order", "BPTT", "BPTT minus zeroth-order", "over seeds", "SOMA (paper)", "BPTT (paper)",
    )  # fmt: skip
    notes = (
        "Ensemble validation, nats per byte, last iterate, mean over seeds; brackets: 95 % paired bootstrap interval "
        f"over documents. {SEED_NOTE} A backward pass counts as two forwards.",
        "Budgets: arithmetic operations here, GPU-hours in the paper, whose losses stand in rows of their own because "
        "no budget is the same.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def _at_budget(row: Any, name: str) -> Cell:
    value, low, high, between, runs = (
        getattr(row, f"{name}{end}") for end in ("", "_low", "_high", "_interpolated", "_runs")
    )
    return NOT_RUN if pd.isna(value) else interpolated(with_interval(value, low, high, runs), between)
