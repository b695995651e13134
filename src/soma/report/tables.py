"""Tables 1, 2, 4 and 9. Rows come from analysis; nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from soma.config import Arm
from soma.plan import Plan
from soma.report.paper import PaperValues, method_label
from soma.report.table import NOT_RUN, Cell, Table, measured, number
from soma.runs import RunSpec

_LOSS_NOTE = (
    "Losses are nats per byte: last iterate, k = min(4, N) experts averaged, mean over seeds; brackets: 95 % paired "
    "bootstrap interval over documents."
)


def arm_label(arm: Arm) -> str:
    """How an arm is called in tables and figures."""
    if arm.label:
        return arm.label
    if arm.method == "eggroll":
        return f"EGGROLL, population {arm.eggroll.population:,}"
    if arm.method == "bptt":
        return f"BPTT N={arm.experts}"
    name = "SOMA" if arm.experts > 1 else "SPSA"
    return f"{name} N={arm.experts}, n_pert={arm.n_pert}"


def watermark_notes(plan: Plan) -> tuple[str, ...]:
    campaign = f"Campaign `{plan.config.campaign}`."
    mark = plan.config.watermark
    return (f"{campaign} {mark.upper()}: the size of this run supports no conclusion." if mark else campaign,)


def table1(plan: Plan, paper: PaperValues, sets: Mapping[str, Mapping[str, Any]]) -> Table:
    """Settings of the paper and of this campaign."""
    p = paper.tables["table1"]
    config = plan.config
    data = config.data
    soma = config.arms[config.products.fixed_size.soma]
    run = plan.arm_runs[config.products.fixed_size.soma][0]
    plateau = soma.plateau
    density = {"sparse": 0.5, "dense": 1.0}[soma.probe]

    def windows(role: str) -> str:
        kept = {kind: sets[role][kind]["kept"] for kind in ("windows", "documents")}
        return f"{kept['windows']:,} windows of {kept['documents']:,} documents"

    rows = [
        ("window (bytes)", p["context"], data.window),
        ("training sequence (bytes)", p["context"], soma.crop),
        ("routed prefix (bytes)", p["route_bytes"], data.prefix),
        ("scored bytes of a window", p["scored_bytes"], data.window - data.prefix),
        ("ensemble validation", _windows(p["ensemble_validation"]), windows("validation")),
        ("test", _windows(p["test"]), windows("test")),
        ("body: width × blocks", f"{p['body']['width']} × {p['body']['layers']}", f"{soma.width} × {soma.depth}"),
        ("body: parameters", p["body"]["parameters"], run.model.size),
        ("head: parameters", p["head"]["parameters"], run.model.head_size),
        ("n_pert", p["n_pert"], soma.n_pert),
        ("batch (sequences)", p["batch"], soma.batch),
        ("probe density", p["probe_density"], density),
        ("initial lr", p["lr_eps_initial"], soma.lr),
        ("initial eps", p["lr_eps_initial"], soma.eps),
        ("Adam betas", ", ".join(map(str, p["adam_betas"])), f"{soma.beta1}, {soma.beta2}"),
        ("weight decay", p["weight_decay"], soma.weight_decay),
        ("plateau patience (updates)", p["plateau"]["patience_updates"], plateau.patience),
        ("plateau minimal improvement", p["plateau"]["min_improvement"], plateau.min_improvement),
        ("plateau factor", p["plateau"]["factor"], plateau.factor),
        ("plateau floor", p["plateau"]["floor"], plateau.floor),
    ]
    cells = tuple((Cell(name), _setting(a, "paper"), _setting(b, "set")) for name, a, b in rows)
    notes = (
        f"The campaign's column is the arm `{config.products.fixed_size.soma}`; the paper's is its width-32 recipe.",
        *watermark_notes(plan),
    )
    return Table("table1", "Table 1. Settings", ("setting", "paper", "here"), cells, notes)


def table2(plan: Plan, paper: PaperValues) -> Table:
    """Parameters at fixed total size."""
    by_count = {row["n"]: row for row in paper.tables["table2"]}
    rows: list[tuple[int, str, RunSpec | None, Mapping[str, Any]]] = []
    seen: set[tuple[str, int, int, bool]] = set()
    for name, runs in plan.arm_runs.items():
        run = runs[0]
        family = "GRU" if run.settings.method == "eggroll" else "LSTM"
        key = (family, run.experts, run.settings.width, run.trains_head)
        if key in seen:
            continue
        seen.add(key)
        rows.append((run.experts, name, run, by_count.get(run.experts, {}) if family == "LSTM" else {}))
    for n, row in by_count.items():
        if n not in {r[0] for r in rows}:
            rows.append((n, "", None, row))
    cells = tuple(_parameter_row(n, run, row) for n, _, run, row in sorted(rows, key=lambda r: (r[0], r[1])))
    columns = ("N", "head", "width", "body", "ensemble", "width (paper)", "body (paper)", "ensemble (paper)")
    notes = (
        "Counted from the tensors' shapes. `shared`: one frozen head for all; `local`: every expert trains its own; "
        "`untied`: EGGROLL's, counted in its body.",
        "Adam keeps two further numbers for every trained weight, with or without backpropagation.",
        *watermark_notes(plan),
    )
    return Table("table2", "Table 2. Parameters at fixed total size", columns, cells, notes)


def table4(plan: Plan, paper: PaperValues, losses: pd.DataFrame) -> Table:
    """Test loss at equal budget, beside the paper's."""
    theirs = paper.rows("table4")
    final = _final_losses(plan, losses, "test")
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
                _seed_cell(loss),
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
                    *[NOT_RUN] * 4,
                    *_paper_cells(row),
                )
            )
    columns = (
        "method", "N", "n_pert", "updates", "operations", "test loss", "over seeds",
        "updates (paper)", "GPU-hours (paper)", "test loss (paper)",
    )  # fmt: skip
    notes = (
        _LOSS_NOTE,
        "`over seeds`: Student-t 95 % interval of the mean over seeds. Operations are of one run: both signs counted, "
        "head updates, validation and the seed run excluded. Times stand in the table of costs; the paper's GPU-hours "
        "are of an RTX 5090.",
        *watermark_notes(plan),
    )
    return Table("table4", "Table 4. Test loss at equal budget and total size", columns, tuple(cells), notes)


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
                Cell(str(row.seeds), "measured", row.seeds),
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


def table9(plan: Plan, paper: PaperValues, losses: pd.DataFrame) -> Table:
    """The same frozen checkpoints on the external corpus."""
    theirs = paper.rows("table9")
    external = losses[losses["set"] == "external"]
    splits = sorted(external["split"].unique())
    cells = []
    for name, arm in _arms(plan):
        row = theirs.get(arm.counterpart or "", {})
        measured_cells = [_loss_cell(_final_losses(plan, external, "external", split).loc[name]) for split in splits]
        cells.append((Cell(arm_label(arm)), *measured_cells, *_paper_external(row)))
    named = {arm.counterpart for _, arm in _arms(plan)}
    for counterpart, row in theirs.items():
        if counterpart not in named:
            cells.append((Cell(method_label(counterpart)), *[NOT_RUN] * len(splits), *_paper_external(row)))
    source = plan.config.data.external.source.source
    columns = ("method", *(f"{source} {s}".strip() for s in splits), "WikiText-103 validation (paper)", "test (paper)")
    notes = (_LOSS_NOTE, "Nothing was trained or chosen on this corpus.", *watermark_notes(plan))
    return Table("table9", "Table 9. External corpus, frozen checkpoints", columns, tuple(cells), notes)


def costs_table(plan: Plan, costs: pd.DataFrame) -> Table:
    """The six cost quantities of every arm at the end of its budget, never merged."""
    quantities = list(dict.fromkeys(costs["quantity"]))
    cells = []
    for name, arm in _arms(plan):
        runs = plan.arm_runs[name]
        values = [
            number(_cost(costs, runs, q), "measured", -1 if "operations" in q else 1, " ".join(r.id for r in runs))
            for q in quantities
        ]
        cells.append((Cell(arm_label(arm)), *values))
    conventions = costs.drop_duplicates("quantity").set_index("quantity")
    units = [f"{q} ({conventions.loc[q, 'unit']})" for q in quantities]
    notes = [f"{q}: {conventions.loc[q, 'convention']}." for q in quantities]
    hardware = sorted({f"{r.device}, {r.threads} thread(s) per job, engine `{r.engine}`" for r in costs.itertuples()})
    notes += ["Mean over seeds. Device: " + "; ".join(hardware) + ".", *watermark_notes(plan)]
    return Table("costs", "Costs, in their six quantities", ("method", *units), tuple(cells), tuple(notes))


def precision_table(plan: Plan, rows: pd.DataFrame) -> Table:
    """Relative error of the finite difference; beyond the paper."""
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
        "Root mean square error of L(θ + εz) − L(θ − εz) against float64 over "
        f"{rows['directions'].iloc[0]} directions, relative to the exact difference; 1 means no signal left.",
        f"Weights of `{run}`. Operand rounding is emulated in float32; `x3` splits every operand in two.",
        "Not in the paper, which trains with TF32 kernels down to ε = 1e-5.",
        *watermark_notes(plan),
    )
    columns = ("weights", "matrix products", *(f"ε = {step:g}" for step in steps))
    return Table("precision", "Precision of the finite difference", columns, tuple(cells), notes)


def _at_budget(value: float, interpolated: bool, runs: str) -> Cell:
    cell = number(value, "interpolated" if interpolated else "measured", 4, runs)
    if pd.isna(value):
        return NOT_RUN
    return replace(cell, text=f"~{cell.text}") if interpolated else cell


def _arms(plan: Plan) -> list[tuple[str, Arm]]:
    return [(name, plan.config.arms[name]) for name in plan.config.products.fixed_size.arms]


def _final_losses(plan: Plan, losses: pd.DataFrame, set_: str, split: str | None = None) -> pd.DataFrame:
    """Mean over seeds at the end of the budget, last iterate, the arm's k; indexed by arm."""
    rows = losses[(losses["set"] == set_) & losses["seed"].isna() & (losses["iterate"] == "last")]
    if split is not None:
        rows = rows[rows["split"] == split]
    wanted = [
        (rows["arm"] == name) & (rows["update"] == plan.arm_runs[name][0].updates) & (rows["k"] == arm.active)
        for name, arm in _arms(plan)
    ]
    return pd.concat([rows[mask] for mask in wanted]).set_index("arm")


def _loss_cell(row: Any) -> Cell:
    return measured(row.loss, row.low, row.high, row.run)


def _seed_cell(row: Any) -> Cell:
    if pd.isna(row.seed_low):
        return Cell("1 seed", "measured", 1, run=row.run)
    half = (row.seed_high - row.seed_low) / 2
    return Cell(f"± {half:.4f} ({row.seeds} seeds)", "measured", half, run=row.run)


def _cost(costs: pd.DataFrame, runs: list[RunSpec], quantity: str) -> float | None:
    rows = costs[(costs["quantity"] == quantity) & costs["run"].isin([r.id for r in runs])]
    rows = rows[rows["update"] == runs[0].updates]
    return float(rows["value"].mean()) if len(rows) else None


def _paper_cells(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    return (
        number(row.get("updates"), "paper", -1),
        number(row.get("gpu_hours"), "paper", -1),
        number(row.get("test"), "paper", 2),
    )


def _paper_external(row: Mapping[str, Any]) -> tuple[Cell, Cell]:
    return number(row.get("validation"), "paper", 3), number(row.get("test"), "paper", 3)


def _parameter_row(n: int, run: RunSpec | None, paper: Mapping[str, Any]) -> tuple[Cell, ...]:
    if run is None:
        ours = (NOT_RUN,) * 4
    else:
        untied = run.settings.method == "eggroll"
        head = Cell("untied" if untied else "local" if run.trains_head else "shared")
        ours = (
            head,
            number(run.settings.width, "set", -1),
            number(run.body_size, "measured", -1, run.id),
            number(run.parameters, "measured", -1, run.id),
        )
    return (
        Cell(str(n), "set", n),
        *ours,
        number(paper.get("width"), "paper", -1),
        number(paper.get("body"), "paper", -1),
        number(paper.get("ensemble"), "paper", -1),
    )


def _setting(value: Any, status: Any) -> Cell:
    if isinstance(value, (int, float)):
        return Cell(f"{value:,}" if isinstance(value, int) else f"{value:g}", status, value)
    return Cell(str(value), status, str(value))


def _windows(entry: Mapping[str, Any]) -> str:
    return f"{entry['windows']:,} windows of {entry['documents']:,} documents"
