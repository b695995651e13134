"""The searches for rates, and where the rates of every arm come from."""

from __future__ import annotations

import json

import pandas as pd

from soma.analysis.rates import FAIR_SHARE
from soma.plan import Plan
from soma.report.labels import named, searched_cell, watermark_notes
from soma.report.paper import PaperValues
from soma.report.table import NONE, NOT_RUN, Cell, Table, number
from soma.report.tables.tuning import edge


def rates(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate every setting of every search on ensemble validation; the chosen one says so."""
    cells: list[tuple[Cell, ...]] = []
    for row in rows.itertuples():
        values = ", ".join(f"{key} {'none' if v is None else v}" for key, v in json.loads(row.values).items())
        cells.append(
            (
                Cell(row.search),
                Cell(named(plan, row.base)),
                Cell(values, "set", values),
                number(int(row.updates), "measured", -1, row.run),
                number(float(row.operations), "measured", -1, row.run),
                Cell(f"{100 * row.share:.2g} %", "measured", row.share, run=row.run),
                searched_cell(row),
                Cell("chosen" + edge(row), "measured", "chosen", run=row.run) if row.chosen else NONE,
            )
        )
    if not cells:
        cells = [(Cell("none"), *[NOT_RUN] * 7)]
    notes = (
        "Ensemble validation, nats per byte; test data play no part. Brackets: Student-t 95 % interval over seeds, sd: "
        "standard deviation, where there are two or more. `share`: of the budget of the arm that is searched.",
        *(() if len(rows) else ("This campaign has no such search (`products.rates` is empty).",)),
        *watermark_notes(plan),
    )
    columns = ("search", "arm", "setting", "updates", "operations", "share", "validation loss", "choice")
    return Table(columns, tuple(cells), notes)


def of_arms(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate for every arm which search chose each of its rates, or what is missing."""
    given, cells = plan.config.rates_given, []
    for row in rows.itertuples():
        share = NONE if pd.isna(row.share) else Cell(f"{100 * row.share:.2g} %", "set", row.share)
        source = given or row.search or "none"
        reason = Cell(row.reason, "set", row.reason) if row.reason else NONE
        cells.append((Cell(row.arm), Cell(row.key), Cell(row.value, "set", row.value), Cell(source), share, reason))
    notes = (
        f"A rate is chosen fairly if a search on ensemble validation ran on {100 * FAIR_SHARE:.0f} % of the arm's "
        "budget or more, from several values, its choice is not at an edge of what was tried, and the arm has the "
        "chosen value.",
        *((f"The rates of this campaign are not searched: {given}.",) if given else ()),
        *watermark_notes(plan),
    )
    return Table(
        ("arm", "rate", "value", "chosen by", "share of the arm's budget", "what is missing"), tuple(cells), notes
    )
