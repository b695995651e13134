"""Losses under one total of operations that pays for everything."""

from __future__ import annotations

import pandas as pd

from soma.analysis.verdict import difference_of
from soma.plan import Plan
from soma.report.labels import SEED_NOTE, against_cells, arm_label, loss_cell, watermark_notes
from soma.report.paper import PaperValues
from soma.report.table import NONE, Cell, Table, number

_VERDICTS = {"for": "the first is better", "against": "this is better", "neither": "undecided"}


def charged(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the test loss of every arm under every total."""
    cells = [
        (
            number(row.operations, "set", -1),
            Cell(arm_label(plan.arms[row.arm])),
            number(row.updates, "measured", -1, row.run),
            number(100 * row.share, "measured", 2, row.run),
            loss_cell(row),
            *against_cells(row),
            NONE if pd.isna(row.difference) else Cell(_VERDICTS[difference_of(row).support()]),
        )
        for row in rows.itertuples()
    ]
    columns = (
        "operations, all charged", "arm", "updates chosen", "not training (%)", "test loss", "first arm minus this",
        "over seeds", "verdict",
    )  # fmt: skip
    notes = (
        "Charged: training, the seed run, routing (an upper bound), the checks of the schedule, and ensemble "
        "validation at every milestone so far. Each seed stops at the milestone with the lowest ensemble-validation "
        "loss that the total pays for; an arm stands where it can pay for one in every seed. The search for rates is "
        "not charged.",
        f"{SEED_NOTE} Verdict: by both intervals.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)
