"""The frontier: which model is best under a budget of operations. Not in the paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from soma.analysis.verdict import difference_of, judge, simultaneous
from soma.catalogue import QUESTIONS
from soma.plan import Plan
from soma.report.labels import SEED_NOTE, arm_label, difference_cells, named, watermark_notes
from soma.report.paper import PaperValues
from soma.report.table import DITTO, NONE, Cell, Table, interpolated, number, significant, with_interval

VERDICTS = {"reproduced": "held", "not reproduced": "falsified"}
"""Words for verdicts on statements that are not the paper's; the others stay."""
_BYTES = 4
"""Bytes of a parameter, FP32."""
_FITTED = (
    "95 % intervals resample seeds and documents together (S - 1 of S seeds in a draw); they are not simultaneous."
)


def frontier(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the test loss of every arm at every budget, with what it costs to keep and to serve."""
    product, cells = plan.config.products.frontier, []
    test = rows[rows["set"] == "test"]
    budgets = sorted(test["operations"].unique())
    for arm in product.arms:
        own = test[test["arm"] == arm].set_index("operations")
        if own.empty:
            continue
        first, losses = own.iloc[0], []
        for budget in budgets:
            if budget not in own.index:
                losses.append(NONE)
                continue
            at = own.loc[budget]
            cell = interpolated(with_interval(at["loss"], at["low"], at["high"], at["run"]), bool(at["interpolated"]))
            losses.append(replace(cell, text=f"{cell.text} ←") if at["chosen"] else cell)
        memory = int(first["parameters"]) * _BYTES / 1e6
        cells.append(
            (
                Cell(arm_label(plan.arms[arm])),
                number(int(first["experts"]), "set", -1),
                number(int(first["width"]), "set", -1),
                number(int(first["parameters"]), "measured", -1, first["run"]),
                number(memory, "measured", 2, first["run"]),
                number(int(first["token_operations"]), "measured", -1, first["run"]),
                *losses,
            )
        )
    columns = (
        "arm", "N", "width", "parameters", "MB of weights in memory", "operations of a served byte",
        *(f"test loss at {significant(float(b))} operations" for b in budgets),
    )  # fmt: skip
    notes = (
        "←: of its kind (one model, several experts) the arm with the lowest ensemble-validation loss at this budget.",
        "Nats per byte, mean of seeds, last iterate; 95 % interval over documents. Operations are of all experts; the "
        "seed run, routing and evaluation are not among them.",
        "All experts are kept in memory (FP32); a byte is served by the k that are averaged.",
        "The schedule does not know the budget: a smaller one is a milestone of a longer run (F6: what that costs).",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def fits(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the best size, the best N and the lowest losses as functions of the budget, and the extrapolation."""
    product, cells = plan.config.products.frontier, []
    for row in rows.itertuples():
        size = row.part == "best size"
        ends = [f"{significant(round(x)) if size else format(x, '.4f')}" for x in (row.value, row.low, row.high)]
        value = Cell("{} [{}, {}]".format(*ends), "measured", row.value, row.low, row.high, row.run)
        recorded = product.recorded.get(row.kind) if row.part == "lowest loss" and row.extrapolated else None
        remark = NONE
        if row.part == "best size" and not row.extrapolated:
            text = f"inside the sizes in {row.inside:.0%} of draws; misfit {row.misfit:.4f}"
            remark = Cell(text, "measured", row.inside, run=row.run)
        elif row.part == "experts":
            text = f"lowest in {row.share:.0%} of draws: {arm_label(plan.arms[row.arm])}"
            remark = Cell(text, "measured", row.share, run=row.run)
        elif recorded:
            remark = Cell("recorded before the run: {:.4f} [{:.4f}, {:.4f}]".format(*recorded), "set", recorded[0])
        part = f"loss of N={int(row.experts)}" if row.part == "experts" else row.part
        where = f"{significant(row.operations)}{', extrapolated' if row.extrapolated else ''}"
        cells.append((Cell(where), Cell(part), Cell(row.kind), value, remark))
    columns = ("operations", "quantity", "kind", "value", "remark")
    notes = (
        "Best size: parameters at the lowest point of the parabola through the losses of all single models, in the "
        "logarithm of the parameters. Lowest loss: there, or that of the ensemble that validation chose.",
        "Exponents are of power laws of the operations; the extrapolation assumes that they go on.",
        _FITTED,
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def questions(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate every statement with its differences, what would falsify it, and the verdict."""
    cells = []
    for name, own in rows.groupby("question", sort=True):
        question = QUESTIONS[str(name)]
        differences = simultaneous([difference_of(row) for row in own.itertuples()])
        verdict = verdict_of(str(name), rows)
        for i, (row, difference) in enumerate(zip(own.itertuples(), differences, strict=True)):
            statement = (question.text, question.falsified_by, verdict) if i == 0 else (DITTO,) * 3
            sides = f"{named(plan, row.ours)} minus {named(plan, row.theirs)}"
            at = number(float(row.operations), "set", -1)
            measured = difference_cells(difference)
            words = [Cell(text) for text in statement]
            cells.append((Cell(str(name)), words[0], Cell(sides), at, *measured, Cell(row.unit), *words[1:]))
    columns = (
        "question", "statement", "difference", "operations", "first minus second", "over seeds", "unit", "falsified by",
        "verdict",
    )  # fmt: skip
    notes = (
        "A statement says that its differences are negative; of F5 and F6, that they are zero. It is *falsified* when "
        "both intervals of one difference exclude that, and *held* when those of all are on its side; F5 and F6 are at "
        "best *not falsified*. Intervals of a statement are simultaneous (Holm).",
        f"First minus second: 95 % paired bootstrap interval over documents. {SEED_NOTE} Test losses; what is compared "
        "was chosen on ensemble validation.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def verdict_of(name: str, rows: pd.DataFrame) -> str:
    """Return the verdict on a statement: `held`, `falsified`, `inconclusive` or `not run`.

    That nothing differs is never shown by an interval that includes zero, so such a statement is at best
    `not falsified`.

    Args:
        rows: rows of `analysis.frontier.differences`.
    """
    differences = simultaneous([difference_of(row) for row in rows[rows["question"] == name].itertuples()])
    if QUESTIONS[name].by_either_side and differences:
        known = [d for d in differences if not np.isnan(d.seed_low)]
        if any(d.support() != "neither" for d in known):
            return "falsified"
        return "not falsified" if len(known) == len(differences) else "inconclusive"
    verdict, _ = judge(differences)
    return VERDICTS.get(verdict, verdict)
