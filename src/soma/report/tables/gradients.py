"""Gradient estimates: Table 8, and estimators of the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from soma.analysis.gradients import TRUSTED, reference_share
from soma.plan import Plan
from soma.report.labels import (
    LOSS_NOTE,
    RUN_NOTE,
    SEED_NOTE,
    against_cells,
    arm_label,
    hardware,
    loss_cell,
    over_runs,
    watermark_notes,
    with_error,
)
from soma.report.paper import PaperValues
from soma.report.table import NONE, NOT_RUN, Cell, Table, number, span


def table8(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the agreement of two disjoint references, and the error of one step's estimate against them."""
    theirs = {row["n"]: row for row in paper.tables["table8"]}
    base = plan.config.products.reference.settings[0]
    own = rows[(rows["n_pert"] == base[0]) & (rows["batch"] == base[1])]
    cells: list[tuple[Cell, ...]] = []
    for arm in plan.config.products.reference.arms:
        runs = plan.arm_runs[arm]
        of_arm = own[own["run"].isin([run.id for run in runs])]
        for update, at_update in of_arm.groupby("update"):
            names, error = " ".join(at_update["run"]), over_runs(at_update["error"], -1, " ".join(at_update["run"]))
            if len(at_update) == 1:
                error = with_error(at_update["error"].iloc[0], at_update["error_se"].iloc[0], -1, names)
            share = float(reference_share(at_update).max())
            check = f"{share:.2%}" + ("" if share <= TRUSTED else ": error not trusted")
            check = "not measured" if pd.isna(share) else check
            cells.append(
                (
                    Cell(str(runs[0].experts), "set", runs[0].experts),
                    number(int(update), "set", -1),
                    number(int(at_update["reference_sequences"].iloc[0]), "set", -1),
                    over_runs(at_update["cosine_distance"], 5, names),
                    Cell(check, "measured", share, run=names),
                    error,
                    over_runs(at_update["aggregate_seconds"], 3, names),
                    over_runs(at_update["error"] * at_update["aggregate_seconds"], -1, names),
                    number(len(at_update), "set", -1),
                    *_references(theirs.get(runs[0].experts, {}), "updates_10k" if update else "init"),
                )
            )
    for n in theirs.keys() - {plan.arms[arm].experts for arm in plan.config.products.reference.arms}:
        for when, name in (("init", "initialisation"), ("updates_10k", "10,000")):
            cells.append((Cell(str(n), "paper", n), Cell(name, "paper"), *[NOT_RUN] * 7, *_references(theirs[n], when)))
    columns = (
        "N", "update", "reference (sequences)", "cosine distance of two references",
        "their noise in the error, at most", "relative squared error of a step", "device seconds of a step",
        "error times device seconds", "runs", "reference batch (paper)",
        "cosine distance (paper)",
    )  # fmt: skip
    keys = ("n256_reduction", "n_pert_64_to_1024_reduction", "batch_64_to_1024_reduction")
    fewer, more, share = (paper.tables["figure5"][key] for key in keys)
    notes = (
        f"A step has n_pert = {base[0]} and B = {base[1]}, and all its directions share its batch. Each expert's "
        "reference is the mean of two backpropagation gradients over disjoint random crops of its own shard; the paper "
        f"accepted them at a cosine distance of about 0.01. Their noise is part of every error; up to {TRUSTED:.0%} of "
        "it counts as little.",
        "*Error times device seconds*: another quantity than the error. It compares steps of unequal cost, since the "
        "variance of an estimate falls in proportion to the time that is spent on it.",
        f"{RUN_NOTE} `s.e.`: standard error over the estimates of a single run.",
        "The paper's columns are at initialisation and after 10,000 updates; here untrained (update 0) and at the end.",
        f"Seconds: on {hardware(rows)}, the experts one after the other.",
        f"The paper's Figure 5: N=256 has {fewer['init']} (initialisation) and {fewer['updates_10k']} times (10,000 "
        f"updates) less error than N=1 at n_pert = B = 64 (plain error, not per GPU-second); n_pert from 64 to 1,024 "
        f"lowers it by {more:.0%}, B from 64 to 1,024 by {share['init']:.2%} and {share['updates_10k']:.0%}.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(sorted(cells, key=_by_count)), notes)


def _references(row: Mapping[str, Any], when: str) -> tuple[Cell, Cell]:
    batch, distance = row.get(when, (None, None))
    return number(batch, "paper", -1), number(distance, "paper", 5)


def _by_count(row: tuple[Cell, ...]) -> int:
    return int(str(row[0].value))


def ratios(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate how many times more the estimate varies with summed losses, at the states of the paired runs."""
    given = paper.tables["figure4"]
    theirs = {
        "early": [("FP32", given["early"]["variance_factor_gpu"]), ("FP64", given["early"]["variance_factor_fp64"])],
        "late": [("FP32", given["late"]["variance_factor"])],
    }
    cells: list[tuple[Cell, ...]] = []
    for (phase, state, precision), own in rows.groupby(["phase", "state", "precision"], sort=False):
        runs = " ".join(dict.fromkeys(own["run"]))
        cells.append(
            (
                Cell(f"{phase}, {state}"),
                Cell(str(precision)),
                number(int(own["experts"].iloc[0]), "set", -1),
                number(own["run"].nunique(), "set", -1),
                number(own["ratio"].mean(), "measured", 2, runs),
                Cell(span(own["ratio"], "{:.2f}".format), "measured", run=runs),
                Cell(span(own["predicted"], "{:.2f}".format), "measured", run=runs),
            )
        )
    for phase, values in theirs.items():
        for precision, (low, high) in values:
            n = number(given[phase]["n"], "paper", -1)
            between = Cell(f"{low:.2f} to {high:.2f}", "paper")
            cells.append(
                (Cell(f"{phase}, both", "paper"), Cell(precision, "paper"), n, Cell("7", "paper"), NONE, between, NONE)
            )
    columns = ("weights", "precision", "N", "runs", "summed over independent", "from and to", "predicted")
    product = plan.config.products.paired
    notes = (
        f"Variance of one probe's estimate around its mean, summed over independent losses: {product.probes} probes "
        f"per expert, the same for both, on {product.batches} fixed batches of {product.batch} training windows per "
        "expert; one ratio for each state and batch.",
        "Predicted: for losses that are linear within ε. N if all experts have gradients of equal norm.",
        "A start that several runs share is measured once, with the probes and the text of the first.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def estimators(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
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
        f"First minus this: below zero the first is better. {SEED_NOTE}",
        "All arms have the same operations, lr, eps, start and batches.",
        f"Variance (relative to the squared norm of the exact gradient) and cosine: {int(rows['repeats'].iloc[0])} "
        "estimates on one batch at the weights of one run, the same for all. `s.e.`: standard error over them.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)
