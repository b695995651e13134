"""Ablations under backpropagation: the numbers of Figure 9."""

from __future__ import annotations

import pandas as pd

from soma.analysis.ablations import overtaken
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
from soma.report.table import NONE, Cell, Table, interpolated, number


def ablation(plan: Plan, paper: PaperValues, rows: pd.DataFrame, curves: pd.DataFrame) -> Table:
    """Tabulate Figure 9's numbers: partition, start and head under backpropagation."""
    cells = []
    for row in rows.itertuples():
        base = row.group == "base"
        changed = "clusters, seed start, full tied head" if base else arm_label(plan.arms[row.arm])
        decoder = plan.arms[row.arm].head_path == "decoder"
        theirs = -paper.tables["figure9"]["decoder_only_penalty"] if decoder else None
        turn = NONE if base else _turn(plan, curves, row.arm)
        ours = Cell(row.group), Cell(changed), loss_cell(row), *against_cells(row)
        cells.append((*ours, number(theirs, "paper", 3), turn))
    notes = (
        f"{LOSS_NOTE} {SEED_NOTE}",
        "Order turns: the update at which base and ablation change their order on expert validation for the last time "
        "(each expert on its own shard, averaged over experts; linear between checks), with its range over seeds. "
        "Under `partition` the two are validated on text of different shards.",
        "A head that is frozen as it is drawn goes with a body that starts at random too.",
        *watermark_notes(plan),
    )
    columns = (
        "ablation of", "arm", "test loss", "base minus this", "over seeds", "base minus this (paper)",
        "order turns at update",
    )  # fmt: skip
    return Table(columns, tuple(cells), notes)


def _turn(plan: Plan, curves: pd.DataFrame, arm: str) -> Cell:
    """Say when the base and an ablation change their order for the last time, and who leads then."""
    turns = overtaken(plan, curves, arm)
    known, runs = turns[turns["update"].notna()], " ".join(curves.loc[curves["arm"] == arm, "run"].unique())
    if known.empty:
        return Cell(f"never ({len(turns)} seeds)", "measured", 0, run=runs)
    leads = {(True, False): "base", (False, True): "ablation"}
    leader = leads.get(((known["last"] < 0).all(), (known["last"] > 0).all()), "either")
    low, mean, high = known["update"].min(), known["update"].mean(), known["update"].max()
    text = f"{mean:,.0f} ({low:,.0f} to {high:,.0f}; {len(known)} of {len(turns)} seeds), then {leader} leads"
    return interpolated(Cell(text, "measured", float(mean), float(low), float(high), runs))
