"""Sweeps over N, n_pert and B: Table 10, the cost of reaching one loss (Figure 13), and seconds per step."""

from __future__ import annotations

import re

import pandas as pd

from soma.analysis.sweep import AXES, variants
from soma.plan import Plan
from soma.report.labels import RUN_NOTE, over_runs, watermark_notes
from soma.report.paper import PaperValues
from soma.report.table import NONE, NOT_RUN, Cell, Table, interpolated, measured, number


def table10(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the best allocation of the sweeps at each budget, on ensemble validation, interpolated."""
    theirs = {row["operations"]: row for row in paper.tables["table10"]}
    own = plan.config.products.sweep.operations
    cells: list[tuple[Cell, ...]] = []
    for budget in sorted({*own, *theirs}):
        found = rows[rows["operations"] == budget].sort_values(["best", "loss"], ascending=[False, True])
        operations = number(float(budget), "set" if budget in own else "paper", -1)
        given = [number(None, "paper")] * 2
        if budget in theirs:
            low, high = theirs[budget]["range"]
            given = [Cell("8, 64, 1,024", "paper"), Cell(f"{low:.4f} to {high:.4f}", "paper", low, low, high)]
        cells.append((operations, *(_best(found) if len(found) else [NOT_RUN] * 5), *given))
    columns = (
        "operations", "best N", "n_pert", "B", "validation loss", "next best", "best N, n_pert, B (paper)",
        "validation range (paper)",
    )  # fmt: skip
    notes = (
        "Ensemble validation, nats per byte, mean over seeds; brackets: 95 % interval over documents. An allocation "
        "whose run ended before the budget stands with its last loss; nothing is extrapolated.",
        "The best of several on the data that chose it looks better than it is. The paper's budgets are its own.",
        *watermark_notes(plan),
    )
    return Table("table10", "Table 10. Best allocation under a budget", columns, tuple(cells), notes)


def _best(found: pd.DataFrame) -> list[Cell]:
    """Return the best allocation with its loss, and the second best."""
    best, *more = found.itertuples()
    second = NONE
    if more:
        row = more[0]
        text = f"{row.loss:.4f} (N={row.experts}, n_pert={row.n_pert}, B={row.batch})"
        second = interpolated(Cell(text, "measured", row.loss, row.low, row.high, row.run), row.interpolated)
    settings = [number(int(getattr(best, key)), "measured", -1, best.run) for key in AXES]
    return [*settings, interpolated(measured(best.loss, best.low, best.high, best.run), best.interpolated), second]


def crossings_table(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the cost of every allocation of the sweeps until it reaches a loss that all reach."""
    theirs = {}
    for name, hours in paper.tables["figure13"]["gpu_hours"].items():
        n_pert, batch = map(int, re.findall(r"\d+", name))
        theirs[8, n_pert, batch] = hours
    cells = []
    for row in rows.sort_values("operations").itertuples():
        s = plan.arm_runs[row.arm][0].settings
        allocation = (s.experts, s.n_pert, s.batch * s.accumulation)
        spent = [(row.operations, -1), (row.device_seconds, 1), (row.elapsed_seconds, 1)]
        values = [number(float(value), "measured", digits, row.run) for value, digits in spent]
        if row.bound:
            values = [Cell(f"≤ {cell.text}", cell.status, cell.value, run=cell.run) for cell in values]
        cells.append(
            (
                *(number(value, "set", -1) for value in allocation),
                *(interpolated(cell, not row.bound) for cell in values),
                number(theirs.pop(allocation, None), "paper", 1),
            )
        )
    for allocation, hours in theirs.items():
        cells.append((*(number(value, "paper", -1) for value in allocation), *[NOT_RUN] * 3, number(hours, "paper", 1)))
    target = paper.tables["figure13"]["target"]
    notes = (
        f"Ensemble validation {rows['target'].iloc[0]:.4f} nats per byte, the worst of all allocations' lowest losses; "
        "of the mean over seeds, so there is no interval. `≤`: reached at the first milestone.",
        *watermark_notes(plan),
    )
    columns = (
        "N", "n_pert", "B", "operations", "device time (s)", "idealised elapsed (s)",
        f"GPU-hours to {target:.2f} (paper)",
    )  # fmt: skip
    return Table("crossings", "What it takes to reach one loss (Figure 13)", columns, tuple(cells), notes)


def steps_table(plan: Plan, paper: PaperValues, costs: pd.DataFrame) -> Table:
    """Tabulate the time of a global step as N, n_pert or B grows, from recorded updates."""
    names = dict(zip(AXES, ("n", "n_pert_at_n8", "batch_at_n8"), strict=True))
    theirs = {axis: dict(paper.tables["figure7"]["seconds_per_update"][name]) for axis, name in names.items()}
    values = costs.drop_duplicates(["run", "update", "quantity"]).set_index(["run", "update", "quantity"])
    cells: list[tuple[Cell, ...]] = []
    for axis in AXES:
        for value, arm in [(value, arm) for name, value, arm in variants(plan) if name == axis]:
            runs = plan.arm_runs[arm]
            ids = " ".join(run.id for run in runs)
            ends = [(run.id, run.updates) for run in runs]
            seconds = [
                [values.loc[(*end, quantity), "value"] / end[1] for end in ends]
                for quantity in ("aggregate device time", "idealised elapsed time")
            ]
            share = min(values.loc[(*end, "aggregate device time"), "processor_share"] for end in ends)
            cells.append(
                (
                    Cell(AXES[axis]),
                    number(value, "set", -1),
                    *(over_runs(found, 4, ids) for found in seconds),
                    number(float(share), "measured", 2, ids),
                    number(len(runs), "set", -1),
                    number(theirs[axis].pop(value, None), "paper", 3),
                )
            )
        for value, found in theirs[axis].items():
            cells.append((Cell(AXES[axis]), number(value, "paper", -1), *[NOT_RUN] * 4, number(found, "paper", 3)))
    base = plan.config.arms[plan.config.products.sweep.arm]
    columns = (
        "what grows", "value", "seconds of a step, all experts", "seconds of a step, slowest expert",
        "least share of its processors", "runs", "seconds (paper)",
    )  # fmt: skip
    notes = (
        f"Time inside recorded updates over their number. {RUN_NOTE} A share below 1: something ran beside it.",
        f"Else N = {base.experts}, n_pert = {base.n_pert}, B = {base.batch}, width {base.width}. The paper's, of one "
        "expert on an RTX 5090: width 32, n_pert = B = 64, and N = 8 where n_pert or B grow; to be compared with the "
        "slowest expert.",
        *watermark_notes(plan),
    )
    return Table("steps", "Seconds of a global step", columns, tuple(cells), notes)
