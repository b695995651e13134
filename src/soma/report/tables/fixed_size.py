"""Losses at equal total size: Tables 4 and 9."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from soma.analysis.documents import FEWEST, SOURCES
from soma.analysis.fixed_size import ALLOWED, is_noise
from soma.analysis.verdict import difference_of
from soma.config.campaign import Arm
from soma.plan import Plan
from soma.report.labels import (
    LOSS_NOTE,
    NGRAM_NOTE,
    SEED_NOTE,
    arm_label,
    difference_cells,
    loss_seeds_cell,
    watermark_notes,
)
from soma.report.paper import PaperValues, method_label
from soma.report.table import NONE, NOT_RUN, Cell, Table, number, with_interval


def table4(
    plan: Plan, paper: PaperValues, losses: pd.DataFrame, ngrams: pd.DataFrame, walk: pd.DataFrame | None
) -> Table:  # fmt: skip
    """Tabulate test loss at equal budget, beside the paper's, with n-gram models for reference."""
    theirs = paper.rows("table4")
    final, averaged = (_final_losses(plan, losses, "test", iterate=name) for name in ("last", "average"))
    cells = []
    for name, arm in _arms(plan):
        runs = plan.arm_runs[name]
        row = theirs.get(arm.counterpart or "", {})
        loss = final.loc[name]
        cells.append(
            (
                Cell(arm_label(arm)),
                Cell(str(arm.experts), "set", arm.experts),
                number(arm.n_pert if arm.method == "spsa" else None, "set", -1),
                number(runs[0].updates, "measured", -1, loss.run),
                number(float(runs[0].operations(runs[0].updates)), "measured", -1, loss.run),
                _loss_cell(loss),
                loss_seeds_cell(loss),
                _loss_cell(averaged.loc[name]),
                loss_seeds_cell(averaged.loc[name]),
                _noise_cell(plan, name, walk),
                *_paper_cells(row),
            )
        )
    named = {arm.counterpart for _, arm in _arms(plan)}
    for counterpart, row in theirs.items():
        if counterpart not in named:
            cells.append(
                (
                    Cell(method_label(counterpart)),
                    Cell(str(row["n"]), "paper", row["n"]),
                    number(row.get("n_pert"), "paper", -1),
                    *[NOT_RUN] * 6,
                    NONE,
                    *_paper_cells(row),
                )
            )
    for row in ngrams[ngrams["set"] == "test"].itertuples():
        loss = _loss_cell(row, run="")
        cells.append((Cell(_reference(row)), *[NONE] * 4, loss, *[NONE] * 7))
    columns = (
        "method", "N", "n_pert", "updates", "operations", "test loss", "over seeds", "averaged iterate (ours)",
        "averaged, over seeds", "weights and last updates (ours)", "updates (paper)", "GPU-hours (paper)",
        "test loss (paper)",
    )  # fmt: skip
    notes = (
        LOSS_NOTE,
        f"{SEED_NOTE} Operations are of one run: both signs counted, head updates, validation and the seed run "
        "excluded. Times stand in the table of costs; the paper's GPU-hours are of an RTX 5090.",
        "`averaged iterate`: the exponential average of the weights, on the same documents (B3); not in the paper.",
        NGRAM_NOTE,
        *_noise_notes(plan, walk),
        f"More of the paper's Figure 1: {'; '.join(map(_point, paper.tables['figure1_points']))}.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def _point(row: Mapping[str, Any]) -> str:
    """Format a point of Figure 1, such as `SOMA N=8, 700 GPU-hours: 1.71`."""
    name = method_label("-".join([row["method"], f"n{row['n']}", *([f"p{row['n_pert']}"] if "n_pert" in row else [])]))
    units = {"updates": "updates", "gpu_hours": "GPU-hours"}
    spent = [f"{row[key]:,} {unit}" for key, unit in units.items() if key in row]
    return f"{name}, {', '.join(spent)}: {row['test']:.2f}"


def table9(plan: Plan, paper: PaperValues, losses: pd.DataFrame, ngrams: pd.DataFrame) -> Table:
    """Tabulate losses of the same frozen checkpoints on the external corpus."""
    theirs = paper.rows("table9")
    external = losses[losses["set"] == "external"]
    splits = sorted(external["split"].unique())
    cells = []
    for name, arm in _arms(plan):
        row = theirs.get(arm.counterpart or "", {})
        ends = [_final_losses(plan, external, "external", split).loc[name] for split in splits]
        measured_cells = [cell for end in ends for cell in (_loss_cell(end), loss_seeds_cell(end))]
        cells.append((Cell(arm_label(arm)), *measured_cells, *_paper_external(row)))
    named = {arm.counterpart for _, arm in _arms(plan)}
    for counterpart, row in theirs.items():
        if counterpart not in named:
            cells.append((Cell(method_label(counterpart)), *[NOT_RUN] * (2 * len(splits)), *_paper_external(row)))
    outside = ngrams[ngrams["set"] == "external"]
    for _, rows in outside.groupby("model", sort=False):
        by_split = {row.split: row for row in rows.itertuples()}
        measured_cells = [cell for split in splits for cell in (_loss_cell(by_split[split], run=""), NONE)]
        cells.append((Cell(_reference(next(rows.itertuples()))), *measured_cells, NONE, NONE))
    source = plan.config.data.external.source.source
    ours = [column for s in splits for column in (f"{source} {s}".strip(), f"{s} over seeds".strip())]
    columns = ("method", *ours, "WikiText-103 validation (paper)", "test (paper)")
    notes = (
        f"{LOSS_NOTE} {SEED_NOTE}",
        NGRAM_NOTE,
        "Nothing was trained or chosen on this corpus.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def documents(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the documents won, and the intervals of a difference over documents and over their whole sources."""
    theirs = {"paired, early": paper.tables["figure4"]["early"]["documents_better"]}
    cells = []
    for row in rows.itertuples():
        won, total = theirs.get(row.comparison, (None, None))
        share = f"{row.won:,} of {row.documents:,} ({row.won / row.documents:.1%})"
        cells.append(
            (
                Cell(row.comparison),
                *(Cell(f"{arm_label(plan.arms[arm])}, width {plan.arms[arm].width}") for arm in (row.ours, row.theirs)),
                number(int(row.seeds), "set", -1),
                Cell(share.replace("%", " %"), "measured", row.won / row.documents, run=row.run),
                difference_cells(difference_of(row))[0],
                *(_over_sources(row, source) for source in SOURCES),
                number(None, "paper") if won is None else Cell(f"{won:,} of {total:,}", "paper", won / total),
            )
        )
    columns = (
        "comparison", "ours", "other", "seeds", "documents won in every seed", "ours minus other",
        *(f"over {name}" for name in SOURCES.values()), "won (paper)",
    )  # fmt: skip
    notes = (
        "Test, nats per byte, last iterate at the end of the budgets; brackets: 95 % interval, over documents and over "
        f"whole sources of documents. Fewer than {FEWEST} sources would give too narrow an interval: there is none.",
        "A source group is what the corpus says of a document (a row group of FineWeb-Edu); where each document is a "
        "file of its own, documents are the sources.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def _over_sources(row: Any, source: str) -> Cell:
    count, low, high = (getattr(row, f"{source}_{name}") for name in ("count", "low", "high"))
    if pd.isna(low):
        return Cell(f"none: {count or 'no'} {SOURCES[source]}", "not run")
    return Cell(f"[{low:+.4f}, {high:+.4f}] ({count:,})", "measured", row.difference, low, high, row.run)


def _final_losses(
    plan: Plan, losses: pd.DataFrame, set_: str, split: str | None = None, iterate: str = "last"
) -> pd.DataFrame:
    """Return losses averaged over seeds at the end of the budget, at the arm's k; indexed by arm."""
    rows = losses[(losses["set"] == set_) & losses["seed"].isna() & (losses["iterate"] == iterate)]
    if split is not None:
        rows = rows[rows["split"] == split]
    wanted = [
        (rows["arm"] == name) & (rows["update"] == plan.arm_runs[name][0].updates) & (rows["k"] == arm.active)
        for name, arm in _arms(plan)
    ]
    return pd.concat([rows[mask] for mask in wanted]).set_index("arm")


def _loss_cell(row: Any, run: str | None = None) -> Cell:
    return with_interval(row.loss, row.low, row.high, row.run if run is None else run)


def _reference(row: Any) -> str:
    return f"{row.model} of the training text (reference)"


def _noise_cell(plan: Plan, arm: str, walk: pd.DataFrame | None) -> Cell:
    """Say whether all measured runs of an arm are noise by their weights and last updates, or how many are."""
    runs = [run.id for run in plan.arm_runs[arm]]
    if walk is None or (rows := walk[walk["run"].isin(runs)]).empty:
        return NONE
    noise = int(is_noise(rows).sum())
    text = {0: "more than noise", len(rows): "as noise"}.get(noise, f"as noise in {noise} of {len(rows)} runs")
    return Cell(text, "measured", noise, run=" ".join(rows["run"]))


def _noise_notes(plan: Plan, walk: pd.DataFrame | None) -> tuple[str, ...]:
    """Give the numbers behind the column on noise, for every arm that has it."""
    if walk is None:
        return ()
    arms = [(name, arm) for name, arm in _arms(plan) if walk["run"].isin([r.id for r in plan.arm_runs[name]]).any()]
    notes = []
    for name, arm in arms:
        rows = walk[walk["run"].isin([run.id for run in plan.arm_runs[name]])]
        expected = rows["noise_rms"].mean()
        against = "not known under this schedule of the step" if pd.isna(expected) else f"{expected:.3f}"
        errors = float((rows["agreement_se"] ** 2).sum() ** 0.5 / len(rows))
        notes.append(
            f"{arm_label(arm)}: weights have an RMS of {rows['rms'].mean():.3f}, noise alone gives {against}, the "
            f"start had {rows['initial_rms'].mean():.3f}. An update at the end moves {rows['moved'].mean():.2%} of "
            f"them, noise {rows['alpha'].mean():.2%}; {rows['ties'].mean():.2%} of the pairs are ties. The sums of "
            f"both halves of the population agree to a cosine of {rows['agreement'].mean():+.5f} ± {errors:.5f} s.e. "
            "(0: no signal). "
            f"`as noise`: an RMS within {ALLOWED:.0%} of noise's, and an agreement whose 95 % interval holds 0. A run "
            "that has come to rest where noise and signal balance reads the same: its loss says what it learned before."
        )
    return tuple(notes)


def _paper_cells(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (
        number(row.get("updates"), "paper", -1),
        number(row.get("gpu_hours"), "paper", -1),
        number(row.get("test"), "paper", 2),
    )


def _paper_external(row: Mapping[str, Any]) -> tuple[Cell, Cell]:
    return number(row.get("validation"), "paper", 3), number(row.get("test"), "paper", 3)


def _arms(plan: Plan) -> list[tuple[str, Arm]]:
    return [(name, plan.config.arms[name]) for name in plan.config.products.fixed_size.arms]
