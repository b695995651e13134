"""Scaling and allocation: Tables 10 and 11, and the cost of reaching one loss (Figure 13)."""

from __future__ import annotations

import re

import pandas as pd

from soma.analysis.scaling import AXES, variants
from soma.analysis.verdict import difference_of
from soma.plan import Plan
from soma.report.labels import (
    LOSS_NOTE,
    SEED_NOTE,
    arm_label,
    difference_cells,
    loss_cell,
    watermark_notes,
)
from soma.report.paper import PaperValues
from soma.report.table import NONE, NOT_RUN, Cell, Table, interpolated, number, with_interval


def table10(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the best allocation of the sweeps at each budget, on ensemble validation, interpolated."""
    theirs = {row["operations"]: row for row in paper.tables["table10"]}
    own = plan.config.products.sweep.operations
    allocations = len({plan.arm_runs[arm][0].id for _, _, arm in variants(plan)})
    cells: list[tuple[Cell, ...]] = []
    for budget in sorted({*own, *theirs}):
        covering = rows[rows["operations"] == budget].sort_values(["best", "loss"], ascending=[False, True])
        operations = number(float(budget), "set" if budget in own else "paper", -1)
        given = [number(None, "paper")] * 2
        if budget in theirs:
            low, high = theirs[budget]["range"]
            best = ", ".join(f"{value:,}" for value in theirs[budget]["best"])
            given = [
                Cell(best, "paper"),
                Cell(f"{low:.4f} to {high:.4f}", "paper", low, low, high),
            ]
        known = [_covered(len(covering), allocations), *_best(covering)] if budget in own else [NOT_RUN] * 6
        cells.append((operations, *known, *given))
    columns = (
        "operations", "covered by", "best N", "n_pert", "B", "validation loss", "next best",
        "best N, n_pert, B (paper)", "validation range (paper)",
    )  # fmt: skip
    notes = (
        "Ensemble validation, nats per byte, mean over seeds; brackets: 95 % interval over documents. Only allocations "
        "whose curves cover a budget are compared; with fewer than two, nothing is.",
        "The best of several on the data that chose it looks better than it is. The paper's budgets are its own.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def _covered(covering: int, allocations: int) -> Cell:
    return Cell(f"{covering} of {allocations} allocations", "set", covering)


def _best(covering: pd.DataFrame) -> list[Cell]:
    """Return the best allocation with its loss, and the second best; without two, nothing was compared."""
    if len(covering) < 2:
        return [Cell("not compared", "not run")] * 5
    best, row, *_ = covering.itertuples()
    text = f"{row.loss:.4f} (N={row.experts}, n_pert={row.n_pert}, B={row.batch})"
    second = interpolated(Cell(text, "measured", row.loss, row.low, row.high, row.run), row.interpolated)
    settings = [number(int(getattr(best, key)), "measured", -1, best.run) for key in AXES]
    return [*settings, interpolated(with_interval(best.loss, best.low, best.high, best.run), best.interpolated), second]


def table11(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Compare continuations at equal operations with different splits of n_pert and B: every loss, then every pair."""
    ends, pairs = rows[rows["difference"].isna()], rows[rows["difference"].notna()]
    names = {row.arm: f"({row.n_pert:.0f}, {row.batch:.0f})" for row in ends.itertuples()}
    theirs = {f"({row['n_pert']}, {row['batch']})": row["test"] for row in paper.tables["table11"]}
    cells: list[tuple[Cell, ...]] = []
    for row in ends.itertuples():
        spent = [
            number(int(row.updates), "measured", -1, row.run),
            number(float(row.operations), "measured", -1, row.run),
        ]
        given = number(theirs.pop(names[row.arm], None), "paper", 6)
        cells.append((Cell(names[row.arm]), *spent, loss_cell(row, 5), *[NONE] * 3, given))
    for row in pairs.itertuples():
        difference = difference_of(row)
        excludes = {"for": "yes", "against": "yes", "neither": "no"}[difference.support()]
        known = Cell(excludes, "measured", excludes, run=row.run)
        pair = Cell(f"{names[row.arm]} minus {names[row.other]}")
        cells.append((pair, *[NONE] * 3, *difference_cells(difference, 5), known, NONE))
    for name, loss in theirs.items():
        cells.append((Cell(name, "paper"), *[NOT_RUN] * 6, number(loss, "paper", 6)))
    columns = (
        "n_pert, B", "updates", "operations", "test loss", "difference", "over seeds", "both exclude zero",
        "test (paper)",
    )  # fmt: skip
    notes = (
        f"{LOSS_NOTE} {SEED_NOTE}",
        f"C14 is judged by every pair: equal means no further apart than {plan.config.products.allocation.margin:.5f}, "
        "the spread of the paper's three means of two seeds. A difference that excludes zero by more contradicts it.",
        "All continue the same arm, weights and optimiser state; B above the arm's batch is accumulated, each batch "
        "with directions of its own.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def crossings(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the cost of every allocation of the sweeps until it reaches the target loss."""
    theirs = {}
    for name, hours in paper.tables["figure13"]["gpu_hours"].items():
        n_pert, batch = map(int, re.findall(r"\d+", name))
        theirs[8, n_pert, batch] = hours
    cells = []
    for row in rows.sort_values(["operations", "lowest"]).itertuples():
        s = plan.arm_runs[row.arm][0].settings
        allocation = (s.experts, s.n_pert, s.batch * s.accumulation)
        spent = [(row.operations, -1), (row.device_seconds, 1), (row.elapsed_seconds, 1)]
        values = [number(float(value), "measured", digits, row.run) for value, digits in spent]
        first = number(float(row.first_operations), "measured", -1, row.run)
        if not row.reached:
            missed = Cell("not reached", "measured", "not reached", run=row.run)
            values, first = [missed] * 3, missed
        if row.bound:
            values = [Cell(f"≤ {cell.text}", cell.status, cell.value, run=cell.run) for cell in values]
        cells.append(
            (
                *(number(value, "set", -1) for value in allocation),
                *(interpolated(cell, row.reached and not row.bound) for cell in values),
                first,
                number(float(row.lowest), "measured", 4, row.run),
                number(theirs.pop(allocation, None), "paper", 1),
            )
        )
    for allocation, hours in theirs.items():
        cells.append((*(number(value, "paper", -1) for value in allocation), *[NOT_RUN] * 5, number(hours, "paper", 1)))
    target = paper.tables["figure13"]["target"]
    chosen = "the median of all allocations' lowest losses, which at least half of them reach"
    source = chosen if plan.config.products.sweep.target is None else "set in the configuration"
    notes = (
        f"Target: ensemble validation {rows['target'].iloc[0]:.4f} nats per byte, {source}. Costs of the mean curve "
        "over seeds, so there is no interval; linear between two milestones. `≤`: reached at the first milestone.",
        *watermark_notes(plan),
    )
    columns = (
        "N", "n_pert", "B", "operations", "device time (s)", "idealised elapsed (s)",
        "operations of the first point at or below", "lowest loss",
        f"GPU-hours to {target:.2f} (paper)",
    )  # fmt: skip
    return Table(columns, tuple(cells), notes)


def per_expert(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Compare every N of equal total size with the fewest experts at equal work per expert."""
    cells = []
    for row in rows.itertuples():
        ours = Cell(arm_label(plan.arms[row.arm]))
        losses = [number(float(value), "measured", 4, row.run) for value in (row.loss, row.other)]
        cells.append(
            (
                ours,
                number(int(row.fewest), "set", -1),
                number(float(row.operations), "measured", -1, row.run),
                *(interpolated(cell, row.interpolated) for cell in losses),
                *difference_cells(difference_of(row)),
            )
        )
    columns = (
        "arm", "against N", "operations of each expert", "validation loss", "validation loss of the other",
        "first minus other", "over seeds",
    )  # fmt: skip
    notes = (
        "Ensemble validation, nats per byte: mean over seeds at the most work per expert that both have done; "
        f"brackets: 95 % paired bootstrap interval over documents. {SEED_NOTE}",
        "The claim C15 is judged by the last row, the most experts against the fewest.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)
