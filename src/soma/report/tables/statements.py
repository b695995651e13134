"""Statements beyond the paper: their differences, what would falsify them, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import pandas as pd

from soma.analysis.verdict import difference_of, judge, simultaneous
from soma.catalogue import QUESTIONS
from soma.plan import Plan
from soma.report.labels import SEED_NOTE, difference_cells, named, watermark_notes
from soma.report.paper import PaperValues
from soma.report.table import DITTO, Cell, Table, number

VERDICTS = {"reproduced": "held", "not reproduced": "falsified"}
"""Words for verdicts on statements that are not the paper's; the others stay."""


class Stated(Protocol):
    """What the catalogue or a configuration says of a statement."""

    @property
    def statement(self) -> str: ...
    @property
    def falsified_by(self) -> str: ...
    @property
    def zero(self) -> bool: ...


def frontier(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the frontier's statements."""
    return _tabulate(plan, rows, QUESTIONS)


def study(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the statements of the configuration."""
    return _tabulate(plan, rows, plan.config.products.study.statements)


def verdict_of(stated: Stated, rows: pd.DataFrame) -> str:
    """Return the verdict on a statement: `held`, `falsified`, `inconclusive` or `not run`.

    That nothing differs is never shown by an interval that includes zero, so such a statement is at best
    `not falsified`.

    Args:
        rows: the statement's rows of `analysis.frontier.differences` or `analysis.study.differences`.
    """
    differences = simultaneous([difference_of(row) for row in rows.itertuples()])
    if stated.zero and differences:
        known = [d for d in differences if not np.isnan(d.seed_low)]
        if any(d.support() != "neither" for d in known):
            return "falsified"
        return "not falsified" if len(known) == len(differences) else "inconclusive"
    verdict, _ = judge(differences)
    return VERDICTS.get(verdict, verdict)


def _tabulate(plan: Plan, rows: pd.DataFrame, stated: Mapping[str, Stated]) -> Table:
    cells: list[tuple[Cell, ...]] = []
    for name, own in rows.groupby("question", sort=False):
        question, verdict = stated[str(name)], verdict_of(stated[str(name)], own)
        differences = simultaneous([difference_of(row) for row in own.itertuples()])
        for i, (row, difference) in enumerate(zip(own.itertuples(), differences, strict=True)):
            texts = (question.statement, question.falsified_by, verdict) if i == 0 else (DITTO,) * 3
            statement, falsified_by, outcome = (Cell(text) for text in texts)
            sides = Cell(f"{named(plan, row.ours)} minus {named(plan, row.theirs)}")
            at = number(float(row.operations), "set", -1)
            measured = difference_cells(difference)
            cells.append((Cell(str(name)), statement, sides, at, *measured, Cell(row.unit), falsified_by, outcome))
    zeros = [name for name, question in stated.items() if question.zero]
    columns = (
        "question", "statement", "difference", "operations", "first minus second", "over seeds", "unit", "falsified by",
        "verdict",
    )  # fmt: skip
    notes = (
        "A statement says that its differences are negative"
        + (f" ({', '.join(zeros)}: that they are zero)" if zeros else "")
        + ". It is *falsified* when both intervals of one difference exclude that, and *held* when those of all are on "
        "its side"
        + ("; that nothing differs is at best *not falsified*" if zeros else "")
        + ". Intervals of a statement are simultaneous (Holm).",
        f"First minus second: 95 % paired bootstrap interval over documents. {SEED_NOTE} Test losses; operations are "
        "those of the first, in training.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)
