"""What arms are called, and the notes and cells that every product shares."""

from __future__ import annotations

from typing import Any

import pandas as pd

from soma.config import Arm
from soma.plan import Plan
from soma.report.table import NOT_RUN, Cell, measured

LOSS_NOTE = (
    "Losses are nats per byte: last iterate, k = min(4, N) experts averaged, mean over seeds; brackets: 95 % paired "
    "bootstrap interval over documents."
)
SEED_NOTE = "`over seeds`: Student-t 95 % interval of the mean over seeds."


def arm_label(arm: Arm) -> str:
    """How an arm is called in tables and figures."""
    if arm.label:
        return arm.label
    if arm.method == "eggroll":
        return f"EGGROLL, population {arm.eggroll.population:,}"
    if arm.method == "bptt":
        return f"BPTT N={arm.experts}"
    name = "SOMA" if arm.experts > 1 else "SPSA"
    where = " on random shards" if arm.experts > 1 and arm.partition == "random" else ""
    loss = ", summed loss" if arm.loss == "summed" else ""
    return f"{name} N={arm.experts}{where}, n_pert={arm.n_pert}{loss}"


def watermark_notes(plan: Plan) -> tuple[str, ...]:
    campaign = f"Campaign `{plan.config.campaign}`."
    mark = plan.config.watermark
    return (f"{campaign} {mark.upper()}: the size of this run supports no conclusion." if mark else campaign,)


def loss_cell(row: Any, digits: int = 4) -> Cell:
    """The loss of an `against` row with its interval over documents."""
    return measured(row.loss, row.loss_low, row.loss_high, row.run, digits)


def difference_cells(row: Any, digits: int = 4) -> tuple[Cell, Cell]:
    """A difference with its interval over documents, and its interval over seeds."""
    if pd.isna(row.difference):
        return NOT_RUN, NOT_RUN
    return measured(row.difference, row.low, row.high, row.run, digits), seeds_cell(row, digits)


def seeds_cell(row: Any, digits: int = 4) -> Cell:
    """The interval of a difference over seeds."""
    if pd.isna(row.seed_low):
        return Cell(f"{int(row.seeds)} seed", "measured", int(row.seeds), run=row.run)
    text = f"[{row.seed_low:.{digits}f}, {row.seed_high:.{digits}f}] ({int(row.seeds)} seeds)"
    return Cell(text, "measured", int(row.seeds), row.seed_low, row.seed_high, row.run)
