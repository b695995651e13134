"""Comparisons between arms: Tables 5, 6, 7 and 11, the ablations, the controls and the estimators."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from soma.analysis.verdict import difference_of
from soma.plan import Plan
from soma.report.labels import LOSS_NOTE, SEED_NOTE, arm_label, difference_cells, loss_cell, watermark_notes
from soma.report.paper import PaperValues
from soma.report.table import NOT_RUN, Cell, Table, measured, number


def table5(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Zeroth-order training against backpropagation, ensemble validation."""
    theirs = {row["n"]: row for row in paper.tables["table5"]}
    cells: list[tuple[Cell, ...]] = []
    for row in rows.itertuples():
        given = theirs.get(row.experts, {})
        h100 = given.get("h100", {})
        difference = NOT_RUN
        if row.seeds:
            difference = measured(row.difference, row.low, row.high, f"{row.zeroth_order_runs} {row.bptt_runs}")
        cells.append(
            (
                Cell(str(row.experts), "set", row.experts),
                number(float(row.operations), "set", -1),
                _at_budget(row.zeroth_order, row.zeroth_order_interpolated, row.zeroth_order_runs),
                _at_budget(row.bptt, row.bptt_interpolated, row.bptt_runs),
                difference,
                Cell(str(row.seeds), "measured", row.seeds, run=row.run),
                number(h100.get("soma"), "paper", 4),
                number(h100.get("bptt"), "paper", 4),
            )
        )
    measured_counts = set(rows["experts"])
    for n, row in theirs.items():
        if n not in measured_counts:
            theirs_only = [number(row["h100"][m], "paper", 4) for m in ("soma", "bptt")]
            cells.append((Cell(str(n), "paper", n), *[NOT_RUN] * 5, *theirs_only))
    columns = (
        "N", "operations", "zeroth-order", "BPTT", "BPTT minus zeroth-order", "seeds", "SOMA (paper, 100 GPU-h)",
        "BPTT (paper, 100 GPU-h)",
    )  # fmt: skip
    notes = (
        "Ensemble validation, nats per byte, last iterate, mean over seeds; brackets: 95 % paired bootstrap interval "
        "over documents. `~`: interpolated between two milestones. A backward pass counts as two forwards.",
        *watermark_notes(plan),
    )
    return Table("table5", "Table 5. Against backpropagation", columns, tuple(cells), notes)


def table6(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """The search over lr and eps, ensemble validation."""
    tuning = plan.config.products.tuning
    cells = []
    for row in rows.itertuples():
        label = arm_label(plan.config.arms[row.base])
        loss = number(row.loss, "measured", 4, row.run)
        if row.failed:
            loss = Cell(f"{row.failed} of {row.seeds} failed", "measured", row.failed, run=row.run)
        chosen = "" if not row.chosen else "chosen" + (f", at the edge of {row.edge}" if row.edge else "")
        cells.append(
            (
                Cell(label),
                number(float(row.lr), "set", -1),
                number(float(row.eps), "set", -1),
                loss,
                number(row.sd, "measured", 4, row.run),
                Cell(chosen, "measured", chosen, run=row.run),
            )
        )
    best = min(paper.tables["table6"], key=lambda row: row["n1"][0])
    notes = (
        f"Ensemble validation, nats per byte: mean and sample standard deviation over seeds {list(tuning.seeds)}; the "
        "same settings, seeds and operations for both arms. Test data play no part.",
        f"The paper's best of five: lr {best['lr']:g}, eps {best['eps']:g}, N=1 {best['n1'][0]} ± {best['n1'][1]}, N=2 "
        f"{best['n2'][0]} ± {best['n2'][1]}.",
        *watermark_notes(plan),
    )
    columns = ("method", "lr", "eps", "validation loss", "sd over seeds", "choice")
    return Table("table6", "Table 6. Equal search over lr and eps", columns, tuple(cells), notes)


def table7(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Test loss of the chosen settings, each run evaluated once."""
    theirs = paper.tables["table7"]
    cells = []
    for i, row in enumerate(rows.itertuples()):
        given = theirs["seeds"][i] if i < len(theirs["seeds"]) else {}
        cells.append(
            (
                Cell(str(row.seed), "set", row.seed),
                number(row.spsa, "measured", 4, row.spsa_run),
                number(row.soma, "measured", 4, row.soma_run),
                number(row.difference, "measured", 4, f"{row.spsa_run} {row.soma_run}"),
                number(given.get("spsa"), "paper", 4),
                number(given.get("soma"), "paper", 4),
            )
        )
    notes = (
        f"Test, nats per byte. Mean difference {rows['difference'].mean():.4f}, sample standard deviation "
        f"{rows['difference'].std(ddof=1):.4f}; the paper's: {theirs['mean_difference']}, {theirs['sd_difference']}.",
        *watermark_notes(plan),
    )
    columns = ("seed", "SPSA", "SOMA", "SPSA minus SOMA", "SPSA (paper)", "SOMA (paper)")
    return Table("table7", "Table 7. Chosen settings on test", columns, tuple(cells), notes)


def table11(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Continuations at equal operations with different splits of n_pert and B."""
    cells = []
    for i, row in enumerate(rows.itertuples()):
        theirs = paper.tables["table11"][i] if i < len(paper.tables["table11"]) else {}
        difference = ("", "") if i == 0 else None
        cells.append(
            (
                number(int(row.n_pert), "set", -1),
                number(int(row.batch), "set", -1),
                number(int(row.updates), "measured", -1, row.run),
                number(float(row.operations), "measured", -1, row.run),
                loss_cell(row, 5),
                *([Cell(text) for text in difference] if difference else difference_cells(row, 5)),
                number(theirs.get("n_pert"), "paper", -1),
                number(theirs.get("batch"), "paper", -1),
                number(theirs.get("test"), "paper", 6),
            )
        )
    columns = (
        "n_pert", "B", "updates", "operations", "test loss", "first minus this", "over seeds", "n_pert (paper)",
        "B (paper)", "test (paper)",
    )  # fmt: skip
    notes = (
        LOSS_NOTE,
        "All continue the same arm, weights and optimiser state; B above the arm's batch is accumulated, each batch "
        "with directions of its own.",
        *watermark_notes(plan),
    )
    return Table("table11", "Table 11. Continuations at equal operations", columns, tuple(cells), notes)


def ablation_table(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Figure 9's numbers: partition, start and head under backpropagation."""
    cells = []
    for row in rows.itertuples():
        base = row.group == "base"
        changed = "clusters, seed start, full tied head" if base else arm_label(plan.arms[row.arm])
        difference = (Cell(""), Cell("")) if base else difference_cells(row)
        cells.append((Cell(row.group), Cell(changed), loss_cell(row), *difference))
    notes = (
        LOSS_NOTE,
        f"{SEED_NOTE} The paper's decoder-only head costs {paper.tables['figure9']['decoder_only_penalty']}.",
        "A head that is frozen as it is drawn goes with a body that starts at random too.",
        *watermark_notes(plan),
    )
    columns = ("ablation of", "arm", "test loss", "base minus this", "over seeds")
    return Table("ablation", "Ablations under backpropagation (Figure 9)", columns, tuple(cells), notes)


QUESTIONS = {
    "B1": "Do semantic clusters matter, or do random shards do as well?",
    "B2": "Does the ensemble beat one monolith of a single expert's size at the same operations?",
    "B3": "Does the comparison hold for averaged iterates, or is it noise of the last one?",
    "B4": "How much of the gain is averaging: the mixture against its nearest expert alone?",
    "B5": "Does it hold when the seed run and the preprocessing are charged?",
}


FINDINGS = {"for": "the first is better", "against": "the second is better", "neither": "inconclusive"}


def controls_table(plan: Plan, rows: pd.DataFrame) -> Table:
    """What else could explain the comparison at equal total size; ours, not the paper's."""
    cells = []
    for row in rows.itertuples():
        finding = FINDINGS[difference_of(row).side()]
        names = [side_label(plan, text) for text in (row.ours, row.theirs)]
        question = (Cell(row.control), Cell(QUESTIONS[row.control]))
        if not row.seeds:
            cells.append((*question, *map(Cell, names), Cell("no cost in common", "not run"), *[NOT_RUN] * 2))
            continue
        value, seeds = difference_cells(row)
        cells.append((*question, *map(Cell, names), value, seeds, Cell(finding, "measured", finding, run=row.run)))
    columns = ("control", "question", "first", "second", "first minus second", "over seeds", "finding")
    notes = (
        "Not in the paper. " + LOSS_NOTE,
        f"{SEED_NOTE} *Better* needs both intervals on one side of zero; one seed is always inconclusive.",
        "B5: losses at equal cost are interpolated between milestones. B6 is the precision table, B7 the size curve.",
        *watermark_notes(plan),
    )
    return Table("controls", "Controls that the paper did not run", columns, tuple(cells), notes)


def side_label(plan: Plan, text: str) -> str:
    """`arm, words` with the arm's label."""
    arm, comma, words = text.partition(",")
    return arm_label(plan.arms[arm]) + comma + words


def populations_table(plan: Plan, rows: pd.DataFrame) -> Table:
    """The search for EGGROLL's settings at this size, ensemble validation."""
    cells = []
    for row in rows.itertuples():
        loss = number(row.loss, "measured", 4, row.run)
        if row.failed:
            loss = Cell(f"{row.failed} of {row.seeds} failed", "measured", row.failed, run=row.run)
        marks = [word for word, true in (("chosen", row.chosen), ("in Table 4", row.configured)) if true]
        settings = [
            number(getattr(row, key), "set", -1) for key in ("population", "streams", "tokens", "alpha", "step")
        ]
        updates = number(int(row.updates), "measured", -1, row.run)
        cells.append((*settings, updates, loss, Cell(", ".join(marks), "measured", run=row.run)))
    columns = ("population", "streams", "bytes", "α", "δ", "updates", "validation loss", "choice")
    budget = plan.config.products.populations.operations
    notes = (
        f"Ensemble validation, nats per byte, {budget:.3g} operations each; test data play no part. The settings in "
        "Table 4 are those of the configuration; where they are not the ones chosen here, the table says so.",
        *watermark_notes(plan),
    )
    return Table("populations", "Search for EGGROLL's settings", columns, tuple(cells), notes)


def estimators_table(plan: Plan, rows: pd.DataFrame) -> Table:
    """Estimators of the field at equal operations: loss reached and variance measured; not in the paper."""
    cells = []
    for i, row in enumerate(rows.itertuples()):
        difference = (Cell(""), Cell("")) if i == 0 else difference_cells(row)
        cells.append(
            (
                Cell(arm_label(plan.arms[row.arm])),
                number(int(row.n_pert), "set", -1),
                number(int(row.forwards), "measured", -1, row.measured_on),
                number(int(row.updates), "measured", -1, row.run),
                loss_cell(row),
                *difference,
                number(float(row.relative_variance), "measured", -1, row.measured_on),
                number(float(row.cosine), "measured", 4, row.measured_on),
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
        "estimates on one batch at the weights of one run, the same for all.",
        *watermark_notes(plan),
    )
    return Table("estimators", "Estimators at equal operations", columns, tuple(cells), notes)


def _at_budget(value: float, interpolated: bool, runs: str) -> Cell:
    cell = number(value, "interpolated" if interpolated else "measured", 4, runs)
    if pd.isna(value):
        return NOT_RUN
    return replace(cell, text=f"~{cell.text}") if interpolated else cell
