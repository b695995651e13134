"""A learned gate over routed experts against their plain mean."""

from __future__ import annotations

import pandas as pd

from soma.analysis.verdict import difference_of
from soma.plan import Plan
from soma.report.labels import SEED_NOTE, against_cells, arm_label, loss_cell, watermark_notes
from soma.report.paper import PaperValues
from soma.report.table import NONE, Cell, Table, number

_RULES = {
    "mean": "plain mean",
    "nearest": "nearest expert alone",
    "posterior": "posterior, untrained",
    "spsa": "gate, by SPSA",
    "exact": "gate, by its gradient",
}
_VERDICTS = {"for": "better than the mean", "against": "worse than the mean", "neither": "undecided"}


def combiner(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the loss of every rule, its difference from the plain mean, and what its training cost."""
    cells = [
        (
            Cell(arm_label(plan.arms[row.arm])),
            Cell(_RULES[row.rule]),
            loss_cell(row),
            *against_cells(row),
            NONE if row.rule == "mean" else Cell(_VERDICTS[difference_of(row).support()]),
            number(row.operations, "measured", -1, row.run),
            number(100 * row.share, "measured", 3, row.run),
        )
        for row in rows.itertuples()
    ]
    columns = (
        "arm", "rule", "validation loss", "minus plain mean", "over seeds", "verdict", "operations of its training",
        "of the experts' (%)",
    )  # fmt: skip
    notes = (
        f"The experts are frozen; all rules see the same routed experts. {SEED_NOTE} Verdict: by both intervals.",
        "Gates learn from windows of expert validation and are compared on ensemble validation; no test text is read. "
        "Operations: one pass of the experts over these windows, then the gate, on every byte that it is scored on.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)
