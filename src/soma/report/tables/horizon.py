"""Longer state: losses with carried state, and a rare early event."""

from __future__ import annotations

from typing import Any

import pandas as pd

from soma.analysis.verdict import difference_of
from soma.plan import Plan
from soma.report.labels import SEED_NOTE, against_cells, arm_label, difference_cells, loss_cell, watermark_notes
from soma.report.paper import PaperValues
from soma.report.table import NONE, Cell, Table, number

_CARRIED = {"for": "carrying helps", "against": "carrying harms", "neither": "undecided"}
_RECALLED = {"for": "remembered", "against": "worse than chance", "neither": "not told from chance"}


def carried(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate losses with state carried over several windows, against the fewest."""
    fewest = rows["carried"].min()
    cells = [
        (
            Cell(arm_label(plan.arms[row.arm])),
            number(int(row.carried), "set", -1),
            loss_cell(row),
            *against_cells(row),
            NONE if row.carried == fewest else Cell(_CARRIED[difference_of(row).support()]),
        )
        for row in rows.itertuples()
    ]
    columns = ("arm", "windows carried", "validation loss", f"minus {fewest} carried", "over seeds", "verdict")
    notes = (
        f"{rows['bytes'].iloc[0]:,} bytes of {rows['documents'].iloc[0]:,} documents, the same bytes and the same "
        f"experts in every row of an arm. {SEED_NOTE}",
        "Verdict: by both intervals, as for claims. Only evaluation carries state: training starts every sequence "
        "from zero, so a model may meet states that it never saw.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def recall(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate what a cell remembers of its first byte, by distance and method."""
    cells = [
        (
            number(int(row.distance), "set", -1),
            Cell(row.method.upper()),
            number(row.loss, "measured", 4),
            *difference_cells(difference_of(row)),
            number(100 * row.correct, "measured", 1),
            Cell(_RECALLED[difference_of(row).support()]),
            Cell(row.lr),
            number(int(row.updates), "measured", -1),
            number(row.operations, "measured", -1),
            _kibibytes(row),
        )
        for row in rows.itertuples()
    ]
    columns = (
        "distance (bytes)", "method", "loss of the answer", "minus chance", "over seeds", "pairs told apart (%)",
        "verdict", "rate", "updates", "operations", "working memory (KiB)",
    )  # fmt: skip
    first = rows.iloc[0]
    notes = (
        f"Chance is log 2 = {first.chance:.4f} nats, which nothing without memory of the cue can beat. A cell of "
        f"{int(first.parameters):,} parameters, head included, learns from the same start on the same pairs.",
        "Working memory: what an update holds beside the weights and the text. SPSA: the copies, their states and the "
        "hidden states that the engine returns at once, of which the answer needs the last alone; BPTT: what is saved "
        "for the backward pass.",
        f"Operations of the body on every byte, 2 n_pert forwards of a batch or 3. {SEED_NOTE}",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def _kibibytes(row: Any) -> Cell:
    return number(row.working_bytes / 1024, "measured", 0)
