"""Controls that the paper did not run: B1 to B5, the size curve (B7), the precision of differences (B6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.controls import beside_curve, precisions_lost_and_kept
from soma.analysis.verdict import difference_of
from soma.catalogue import CONTROLS
from soma.plan import Plan
from soma.report.labels import (
    LOSS_NOTE,
    SEED_NOTE,
    arm_label,
    difference_cells,
    loss_seeds_cell,
    named,
    watermark_notes,
)
from soma.report.paper import PaperValues
from soma.report.table import NONE, NOT_RUN, Cell, Table, interpolated, number, with_interval

FINDINGS = {"for": "the first is better", "against": "the second is better", "neither": "inconclusive"}


def control_cells(plan: Plan, row: Any, digits: int = 4) -> tuple[Cell, ...]:
    """Return both sides of a control, their difference with its intervals, and the finding."""
    names = [Cell(named(plan, text)) for text in (row.ours, row.theirs)]
    if not row.seeds:
        return (*names, Cell("no cost in common", "not run"), NOT_RUN, NOT_RUN)
    difference = difference_of(row)
    finding = FINDINGS[difference.support()]
    return (*names, *difference_cells(difference, digits), Cell(finding, "measured", finding, run=row.run))


def controls(
    plan: Plan,
    paper: PaperValues,
    rows: pd.DataFrame,
    precision: pd.DataFrame | None,
    sizes: pd.DataFrame,
) -> Table:
    """Tabulate other explanations of the comparison at equal total size; not in the paper."""
    cells = [(Cell(row.control), Cell(CONTROLS[row.control]), *control_cells(plan, row)) for row in rows.itertuples()]
    columns = ("control", "question", "first", "second", "first minus second", "over seeds", "finding")
    notes = (
        "Not in the paper. " + LOSS_NOTE,
        f"{SEED_NOTE} *Better* needs both intervals on one side of zero; one seed is always inconclusive.",
        "B3: Table 4 has the averaged iterate of every arm beside its last one.",
        *findings(plan, rows, precision, sizes),
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def findings(
    plan: Plan, rows: pd.DataFrame | None, precision: pd.DataFrame | None, sizes: pd.DataFrame | None
) -> tuple[str, ...]:  # fmt: skip
    """State the results of the controls that have their own tables, B6 and B7, in a sentence each, if they were run."""
    lost = [] if precision is None else [precision_finding(precision)]
    best = [] if rows is None or sizes is None else [size_finding(plan, sizes, rows)]
    return (*lost, *best)


def sizes(plan: Plan, paper: PaperValues, rows: pd.DataFrame, controls: pd.DataFrame) -> Table:
    """Tabulate the size curve (B7): the best size and number of experts for one budget."""
    own = rows[rows["iterate"] == "last"].sort_values(["kind", "parameters"], ascending=[False, True])
    averaged = rows[rows["iterate"] == "average"].set_index("arm")
    cells = []
    for row in own.itertuples():
        average = averaged.loc[row.arm]
        curve = beside_curve(plan, rows, row.arm)
        beside = interpolated(Cell(f"{curve:+.4f}", "measured", curve, run=row.run))
        cells.append(
            (
                Cell(arm_label(plan.arms[row.arm])),
                number(int(row.width), "set", -1),
                number(int(row.parameters), "measured", -1, row.run),
                number(float(row.operations), "measured", -1, row.run),
                with_interval(row.loss, row.low, row.high, row.run),
                loss_seeds_cell(row),
                NONE if row.kind == "monolith" or np.isnan(curve) else beside,
                with_interval(average.loss, average.low, average.high, average.run),
            )
        )
    columns = (
        "arm", "width", "parameters", "operations", "test loss, last", "over seeds", "minus the monoliths' curve",
        "test loss, averaged iterate",
    )  # fmt: skip
    notes = (
        size_finding(plan, rows, controls),
        "Not in the paper. Nats per byte, mean of seeds, 95 % interval over documents. " + SEED_NOTE,
        "The monoliths' curve is taken at the ensemble's parameters, linear in their logarithm between two sizes.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def size_finding(plan: Plan, rows: pd.DataFrame, controls: pd.DataFrame) -> str:
    """State the result of the size curve in a sentence: the lowest loss of all, and the best ensemble against it.

    Args:
        rows: rows of `analysis.controls.sizes`.
        controls: rows of `analysis.controls.differences`.
    """
    losses = rows[rows["iterate"] == "last"].set_index("arm")["loss"]
    parameters = rows.drop_duplicates("arm").set_index("arm")["parameters"]
    kinds = rows.drop_duplicates("arm").set_index("arm")["kind"]
    lowest = str(losses.idxmin())
    where = f"{losses.min():.4f}, of {arm_label(plan.arms[lowest])} with {parameters[lowest]:,} parameters"
    parts = [f"B7: the lowest loss of all sizes at this budget is {where}"]
    monolith = losses[list(plan.config.products.controls.sizes)].idxmin()
    ensembles = losses[kinds == "ensemble"]
    pair = controls[(controls["theirs"] == monolith) & (controls["ours"] == ensembles.idxmin())]
    for row in pair.itertuples():
        difference = difference_of(row)
        value, seeds = difference_cells(difference)
        names = [f"{arm_label(plan.arms[arm])} ({parameters[arm]:,})" for arm in (row.ours, row.theirs)]
        finding = f"{value.text}, over seeds {seeds.text}: {FINDINGS[difference.support()]}"
        parts.append(f"the best ensemble minus the best monolith, {names[0]} minus {names[1]}: {finding}")
    return "; ".join(parts) + "."


def precision(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the relative error of the finite difference (B6)."""
    run = rows["run"].iloc[0]
    steps = sorted(rows["eps"].unique(), reverse=True)
    errors = rows.set_index(["weights", "precision", "eps"])["error"]
    cells = []
    for weights, group in rows.groupby("weights", sort=False):
        for name in dict.fromkeys(group["precision"]):
            values = [errors.loc[(weights, name, step)] for step in steps]
            measured_cells = [Cell(f"{v:.1e}", "measured", float(v), run=run) for v in values]
            cells.append((Cell(str(weights)), Cell(name), *measured_cells))
    notes = (
        precision_finding(rows),
        "Root mean square error of L(θ + εz) − L(θ − εz) against float64 over "
        f"{rows['directions'].iloc[0]} directions, relative to the exact difference; 1 means no signal left.",
        f"Weights of `{run}`. Operand rounding is emulated in float32; `x3` splits every operand in two.",
        "Not in the paper, which trains with TF32 kernels down to ε = 1e-5.",
        *watermark_notes(plan),
    )
    columns = ("weights", "matrix products", *(f"ε = {step:g}" for step in steps))
    return Table(columns, tuple(cells), notes)


def precision_finding(rows: pd.DataFrame) -> str:
    """State which matrix products keep the difference at trained weights, and from which ε down others lose it."""
    lost, kept = precisions_lost_and_kept(rows)
    parts = [f"{name} loses it (an error of 1 or more) from ε = {eps:g} down" for name, eps in lost.items()]
    if len(kept):
        smallest, most = rows["eps"].min(), f"with an error of at most {kept.max():.1e}"
        parts = [f"{', '.join(kept.index)} keep the difference down to ε = {smallest:g}, {most}", *parts]
    runs = rows["run"].nunique()
    return f"B6: at trained weights {'; '.join(parts)}. Runs: {runs}, so there is no interval over seeds."
