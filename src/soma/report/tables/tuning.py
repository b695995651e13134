"""The equal search over rates, Tables 6 and 7, and EGGROLL at other widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pandas as pd

from soma.analysis.tuning import spread_over_seeds
from soma.plan import Plan
from soma.report.labels import (
    against_cells,
    arm_label,
    over_runs,
    searched_cell,
    watermark_notes,
)
from soma.report.paper import PaperValues
from soma.report.table import NONE, NOT_RUN, Cell, Table, number, with_interval


def table6(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the search over lr and eps on ensemble validation, one row per setting, as in the paper."""
    tuning = plan.config.products.tuning
    names = {tuning.soma: "SOMA", tuning.spsa: "SPSA"}
    theirs = {(row["lr"], row["eps"]): row for row in paper.tables["table6"]}
    best = list(rows[rows["chosen"]].itertuples())

    def lone(row: Any) -> bool:
        own = rows[rows["base"] == row.base]
        return bool(own["eps"].nunique() > 1 and own.loc[own["lr"] == row.lr, "eps"].nunique() == 1)

    cells: list[tuple[Cell, ...]] = []
    for (lr, eps), tried_alike in rows.groupby(["lr", "eps"], sort=False):
        by_base = {row.base: row for row in tried_alike.itertuples()}
        chosen = [names[base] + _seeds(row, tuning.seeds) + edge(row) for base, row in by_base.items() if row.chosen]
        cells.append(
            (
                *(number(float(value), "set", -1) for value in (lr, eps)),
                *(searched_cell(by_base[base]) for base in tuning.bases),
                Cell("; ".join(chosen), "measured", "; ".join(chosen), run=" ".join(tried_alike["run"]))
                if chosen
                else NONE,
                *_tried(theirs.pop((lr, eps), {})),
            )
        )
    for (lr, eps), row in theirs.items():
        cells.append((number(lr, "paper", -1), number(eps, "paper", -1), *[NOT_RUN] * 3, *_tried(row)))
    chosen_by = "for each seed by its own loss" if tuning.each_seed else "by the mean over seeds"
    notes = (
        f"Ensemble validation, nats per byte: mean over seeds {list(tuning.seeds)}, their Student-t 95 % interval, "
        "and sample standard deviation (sd); the same settings, seeds and operations for both arms. Test data play no "
        f"part. A setting is chosen {chosen_by}.",
        *dict.fromkeys(f"{names[row.base]}: no other eps was tried at the chosen lr." for row in best if lone(row)),
        *watermark_notes(plan),
    )
    ours = [arm_label(plan.config.arms[base]) for base in tuning.bases]
    columns = ("lr", "eps", *ours, "chosen for", "SOMA N=2 (paper)", "SPSA N=1 (paper)")
    return Table(columns, tuple(cells), notes)


def _seeds(row: Any, seeds: Sequence[int]) -> str:
    """Return the seeds that chose a setting, unless all did."""
    by = row.chosen_by.split()
    return "" if len(by) == len(seeds) else f" (seed {', '.join(by)})"


def edge(row: Any) -> str:
    """Return a remark if a chosen setting lies at an edge of what was tried."""
    return f" (at the edge of {row.edge})" if row.edge else ""


def _tried(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    return tuple(
        Cell(f"{row[n][0]:.4f}, sd {row[n][1]:.4f}", "paper", row[n][0]) if row else number(None, "paper")
        for n in ("n2", "n1")
    )


def table7(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the test loss of the chosen settings, each run evaluated once."""
    theirs = paper.tables["table7"]
    cells: list[tuple[Cell, ...]] = []
    by_seed, (mean,) = rows[rows["seed"].notna()], rows[rows["seed"].isna()].itertuples()
    for row, given in zip_longest(by_seed.itertuples(), theirs["seeds"]):
        ours = [NOT_RUN] * 5
        if row is not None:
            values = [number(row.spsa, "measured", 4, row.spsa_run), number(row.soma, "measured", 4, row.soma_run)]
            ours = [Cell(str(int(row.seed)), "set", int(row.seed)), *values, *against_cells(row)]
        cells.append((*ours, *(number((given or {}).get(name), "paper", 4) for name in ("spsa", "soma"))))
    values = [over_runs(by_seed[name], 4, ids) for name, ids in (("spsa", mean.spsa_run), ("soma", mean.soma_run))]
    cells.append((Cell("mean"), *values, *against_cells(mean), *[number(None, "paper")] * 2))
    notes = (
        "Test, nats per byte; below zero SOMA is better; brackets: 95 % paired bootstrap interval over documents. `±` "
        "and `over seeds`: Student-t 95 % interval over seeds.",
        f"Sample standard deviation of the difference over seeds: {spread_over_seeds(rows):.4f}.",
        f"The paper's mean difference, SPSA minus SOMA: {theirs['mean_difference']}, standard deviation "
        f"{theirs['sd_difference']}.",
        *watermark_notes(plan),
    )
    columns = ("seed", "SPSA", "SOMA", "SOMA minus SPSA", "over seeds", "SPSA (paper)", "SOMA (paper)")
    return Table(columns, tuple(cells), notes)


def widths(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the lowest validation loss of EGGROLL at its other widths."""
    theirs = {row["width"]: row["updates"] for row in paper.tables["eggroll_widths"]}
    cells: list[tuple[Cell, ...]] = [
        (
            number(int(row.width), "set", -1),
            number(int(row.parameters), "measured", -1, row.run),
            number(int(row.updates), "set", -1),
            number(int(row.update), "measured", -1, row.run),
            number(float(row.operations), "measured", -1, row.run),
            _lowest_cell(row),
            number(theirs.pop(int(row.width), None), "paper", -1),
        )
        for row in rows.itertuples()
    ]
    cells += [
        (number(width, "paper", -1), *[NOT_RUN] * 5, number(updates, "paper", -1)) for width, updates in theirs.items()
    ]
    columns = (
        "width", "parameters", "updates of the run", "updates at its lowest", "operations", "validation loss",
        "updates at its lowest (paper)",
    )  # fmt: skip
    notes = (
        "Ensemble validation, nats per byte: the lowest mean over seeds at a milestone; picked on the text that it "
        "stands for. Brackets: Student-t 95 % interval over seeds.",
        *(() if len(rows) else ("No other width was trained in this campaign (`products.widths.settings` is empty).",)),
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def _lowest_cell(row: Any) -> Cell:
    if pd.isna(row.seed_low):
        return replace(number(row.loss, "measured", 4, row.run), text=f"{row.loss:.4f} ({row.seeds} seed)")
    return with_interval(row.loss, row.seed_low, row.seed_high, row.run)
