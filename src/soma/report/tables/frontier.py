"""The frontier: which model is best under a budget of operations. Not in the paper."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from soma.plan import Plan
from soma.report.labels import arm_label, watermark_notes
from soma.report.paper import PaperValues
from soma.report.table import NONE, Cell, Table, interpolated, number, significant, with_interval

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
