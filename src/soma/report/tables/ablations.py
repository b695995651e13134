"""Ablations under backpropagation: the numbers of Figure 9."""

from __future__ import annotations

import pandas as pd

from soma.plan import Plan
from soma.report.labels import (
    LOSS_NOTE,
    SEED_NOTE,
    against_cells,
    arm_label,
    loss_cell,
    watermark_notes,
)
from soma.report.paper import PaperValues
from soma.report.table import Cell, Table, number


def ablation(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate Figure 9's numbers: partition, start and head under backpropagation."""
    cells = []
    for row in rows.itertuples():
        base = row.group == "base"
        changed = "clusters, seed start, full tied head" if base else arm_label(plan.arms[row.arm])
        decoder = plan.arms[row.arm].head_path == "decoder"
        theirs = -paper.tables["figure9"]["decoder_only_penalty"] if decoder else None
        cells.append((Cell(row.group), Cell(changed), loss_cell(row), *against_cells(row), number(theirs, "paper", 3)))
    notes = (
        f"{LOSS_NOTE} {SEED_NOTE}",
        "A head that is frozen as it is drawn goes with a body that starts at random too.",
        *watermark_notes(plan),
    )
    columns = ("ablation of", "arm", "test loss", "base minus this", "over seeds", "base minus this (paper)")
    return Table(columns, tuple(cells), notes)
