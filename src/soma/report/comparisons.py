"""Comparisons between arms: Tables 5, 6, 7 and 11, the ablations, the search for EGGROLL's settings, the estimators."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import pandas as pd

from soma.analysis.verdict import difference_of
from soma.plan import Plan
from soma.report.labels import (
    LOSS_NOTE,
    SEED_NOTE,
    against_cells,
    arm_label,
    difference_cells,
    loss_cell,
    over_runs,
    searched_cell,
    watermark_notes,
    with_error,
)
from soma.report.paper import PaperValues
from soma.report.table import NONE, NOT_RUN, Cell, Table, interpolated, measured, number, significant


def table5(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Compare zeroth-order training with backpropagation on ensemble validation."""
    theirs = {row["n"]: row for row in paper.tables["table5"]}
    cells: list[tuple[Cell, ...]] = []
    for row in rows.itertuples():
        cells.append(
            (
                Cell(str(row.experts), "set", row.experts),
                number(float(row.operations), "set", -1),
                _at_budget(row, "zeroth_order"),
                _at_budget(row, "bptt"),
                *difference_cells(difference_of(row)),
                *_hours(theirs.get(row.experts, {})),
            )
        )
    for n in sorted(theirs.keys() - set(rows["experts"])):
        cells.append((Cell(str(n), "paper", n), *[NOT_RUN] * 5, *_hours(theirs[n])))
    columns = (
        "N", "operations", "zeroth-order", "BPTT", "BPTT minus zeroth-order", "over seeds",
        "SOMA (paper; 50, 75, 100 GPU-h)", "BPTT (paper; 50, 75, 100 GPU-h)",
    )  # fmt: skip
    notes = (
        "Ensemble validation, nats per byte, last iterate, mean over seeds; brackets: 95 % paired bootstrap interval "
        f"over documents. {SEED_NOTE} A backward pass counts as two forwards.",
        *watermark_notes(plan),
    )
    return Table("table5", "Table 5. Against backpropagation", columns, tuple(cells), notes)


def _at_budget(row: Any, name: str) -> Cell:
    value, low, high, between, runs = (
        getattr(row, f"{name}{end}") for end in ("", "_low", "_high", "_interpolated", "_runs")
    )
    return NOT_RUN if pd.isna(value) else interpolated(measured(value, low, high, runs), between)


def _hours(row: Mapping[str, Any]) -> tuple[Cell, Cell]:
    """Return the paper's losses of both methods at its three budgets."""
    if not row:
        return number(None, "paper"), number(None, "paper")
    found = [[row[budget][method] for budget in ("h50", "h75", "h100")] for method in ("soma", "bptt")]
    soma, bptt = (Cell(", ".join(f"{loss:.4f}" for loss in losses), "paper", losses[-1]) for losses in found)
    return soma, bptt


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
    for (lr, eps), found in rows.groupby(["lr", "eps"], sort=False):
        by_base = {row.base: row for row in found.itertuples()}
        chosen = [names[base] + _edge(row) for base, row in by_base.items() if row.chosen]
        cells.append(
            (
                *(number(float(value), "set", -1) for value in (lr, eps)),
                *(searched_cell(by_base[base]) for base in tuning.bases),
                Cell("; ".join(chosen), "measured", "; ".join(chosen), run=" ".join(found["run"])) if chosen else NONE,
                *_tried(theirs.pop((lr, eps), {})),
            )
        )
    for (lr, eps), row in theirs.items():
        cells.append((number(lr, "paper", -1), number(eps, "paper", -1), *[NOT_RUN] * 3, *_tried(row)))
    notes = (
        f"Ensemble validation, nats per byte: mean over seeds {list(tuning.seeds)}, their Student-t 95 % interval, "
        "and sample standard deviation (sd); the same settings, seeds and operations for both arms. Test data play no "
        "part.",
        *(f"{names[row.base]}: no other eps was tried at the chosen lr." for row in best if lone(row)),
        *watermark_notes(plan),
    )
    ours = [arm_label(plan.config.arms[base]) for base in tuning.bases]
    columns = ("lr", "eps", *ours, "chosen for", "SOMA N=2 (paper)", "SPSA N=1 (paper)")
    return Table("table6", "Table 6. Equal search over lr and eps", columns, tuple(cells), notes)


def _edge(row: Any) -> str:
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
        "Test, nats per byte; brackets: 95 % paired bootstrap interval over documents. `±` and `over seeds`: Student-t "
        "95 % interval over seeds.",
        f"Sample standard deviation of the difference over seeds: {by_seed['difference'].std(ddof=1):.4f}.",
        f"The paper's mean difference: {theirs['mean_difference']}, standard deviation {theirs['sd_difference']}.",
        *watermark_notes(plan),
    )
    columns = ("seed", "SPSA", "SOMA", "SPSA minus SOMA", "over seeds", "SPSA (paper)", "SOMA (paper)")
    return Table("table7", "Table 7. Chosen settings on test", columns, tuple(cells), notes)


def table11(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Compare continuations at equal operations with different splits of n_pert and B."""
    cells: list[tuple[Cell, ...]] = []
    for row, theirs in zip_longest(rows.itertuples(), paper.tables["table11"]):
        ours = [NOT_RUN] * 7
        if row is not None:
            ours = [
                number(int(row.n_pert), "set", -1),
                number(int(row.batch), "set", -1),
                number(int(row.updates), "measured", -1, row.run),
                number(float(row.operations), "measured", -1, row.run),
                loss_cell(row, 5),
                *against_cells(row, 5),
            ]
        given = theirs or {}
        cells.append(
            (
                *ours,
                number(given.get("n_pert"), "paper", -1),
                number(given.get("batch"), "paper", -1),
                number(given.get("test"), "paper", 6),
            )
        )
    columns = (
        "n_pert", "B", "updates", "operations", "test loss", "first minus this", "over seeds", "n_pert (paper)",
        "B (paper)", "test (paper)",
    )  # fmt: skip
    notes = (
        f"{LOSS_NOTE} {SEED_NOTE}",
        "All continue the same arm, weights and optimiser state; B above the arm's batch is accumulated, each batch "
        "with directions of its own.",
        *watermark_notes(plan),
    )
    return Table("table11", "Table 11. Continuations at equal operations", columns, tuple(cells), notes)


def ablation_table(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate Figure 9's numbers: partition, start and head under backpropagation."""
    cells = []
    for row in rows.itertuples():
        base = row.group == "base"
        changed = "clusters, seed start, full tied head" if base else arm_label(plan.arms[row.arm])
        decoder = plan.arms[row.arm].head_path == "decoder"
        theirs = -paper.tables["figure9"]["decoder_only_penalty"] if decoder else None
        cells.append((Cell(row.group), Cell(changed), loss_cell(row), *against_cells(row), number(theirs, "paper", 3)))
    notes = (
        f"{LOSS_NOTE} {SEED_NOTE}",
        "A head that is frozen as it is drawn goes with a body that starts at random too.",
        *watermark_notes(plan),
    )
    columns = ("ablation of", "arm", "test loss", "base minus this", "over seeds", "base minus this (paper)")
    return Table("ablation", "Ablations under backpropagation (Figure 9)", columns, tuple(cells), notes)


def populations_table(plan: Plan, rows: pd.DataFrame) -> Table:
    """Tabulate the search over EGGROLL's settings at this size, on ensemble validation."""
    cells = []
    for row in rows.itertuples():
        words = (("chosen" + _edge(row), row.chosen), ("in Table 4", row.configured))
        marks = ", ".join(word for word, true in words if true)
        settings = [
            number(getattr(row, key), "set", -1) for key in ("population", "streams", "tokens", "alpha", "step")
        ]
        updates = number(int(row.updates), "measured", -1, row.run)
        choice = Cell(marks, "measured", marks, run=row.run) if marks else NONE
        cells.append((*settings, updates, searched_cell(row), choice))
    columns = ("population", "streams", "bytes", "α", "δ", "updates", "validation loss", "choice")
    budget = plan.config.products.populations.operations
    notes = (
        f"Ensemble validation, nats per byte, {significant(budget)} operations each; test data play no part. Brackets: "
        "Student-t 95 % interval over seeds, sd: standard deviation, where there are two or more.",
        "The settings in Table 4 are those of the configuration; where they are not the ones chosen here, the table "
        "says so.",
        *watermark_notes(plan),
    )
    return Table("populations", "Search for EGGROLL's settings", columns, tuple(cells), notes)


def estimators_table(plan: Plan, rows: pd.DataFrame) -> Table:
    """Compare estimators from the literature at equal operations, by loss and variance; not in the paper."""
    cells = []
    for row in rows.itertuples():
        cells.append(
            (
                Cell(arm_label(plan.arms[row.arm])),
                number(int(row.n_pert), "set", -1),
                number(int(row.forwards), "measured", -1, row.measured_on),
                number(int(row.updates), "measured", -1, row.run),
                loss_cell(row),
                *against_cells(row),
                with_error(row.relative_variance, row.relative_variance_se, -1, row.measured_on),
                with_error(row.cosine, row.cosine_se, 4, row.measured_on),
            )
        )
    columns = (
        "estimator", "n_pert", "forwards", "updates", "test loss", "first minus this", "over seeds", "rel. variance",
        "cosine with the gradient",
    )  # fmt: skip
    notes = (
        "Not in the paper. " + LOSS_NOTE,
        f"{SEED_NOTE} All arms have the same operations, lr, eps, start and batches.",
        f"Variance (relative to the squared norm of the exact gradient) and cosine: {int(rows['repeats'].iloc[0])} "
        "estimates on one batch at the weights of one run, the same for all. `s.e.`: standard error over them.",
        *watermark_notes(plan),
    )
    return Table("estimators", "Estimators at equal operations", columns, tuple(cells), notes)
