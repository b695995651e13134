"""Tables 1, 2, 3, 4 and 9, and the costs. Rows come from analysis; nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from soma.analysis.costs import QUANTITIES, WHOLE_JOBS
from soma.config.campaign import Arm
from soma.plan import Plan
from soma.report.labels import (
    LOSS_NOTE,
    RUN_NOTE,
    SEED_NOTE,
    arm_label,
    hardware,
    loss_seeds_cell,
    over_runs,
    watermark_notes,
)
from soma.report.paper import PaperValues, method_label
from soma.report.table import NOT_RUN, Cell, Table, measured, number
from soma.runs import RunSpec

SHARED = ("arithmetic operations", "preprocessing")
"""Quantities shared by all runs of an arm."""


def table1(plan: Plan, paper: PaperValues, sets: Mapping[str, Mapping[str, Any]]) -> Table:
    """Tabulate the settings of the paper and of this campaign."""
    p = paper.tables["table1"]
    config = plan.config
    data = config.data
    soma = config.arms[config.products.fixed_size.soma]
    run = plan.arm_runs[config.products.fixed_size.soma][0]
    plateau = soma.plateau
    density = {"sparse": 0.5, "dense": 1.0, "gaussian": 1.0}[soma.probe]

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
    """Tabulate parameters at fixed total size, with each size in Table 4 once."""
    theirs = {row["n"]: row for row in paper.tables["table2"]}
    found: dict[tuple[int, str, int], RunSpec] = {}
    for name in plan.config.products.fixed_size.arms:
        run = plan.arm_runs[name][0]
        family = "GRU" if run.settings.method == "eggroll" else "LSTM"
        found.setdefault((run.experts, family, run.settings.width), run)
    rows: list[tuple[int, RunSpec | None, Mapping[str, Any]]] = []
    for (n, family, _), run in found.items():
        rows.append((n, run, theirs.pop(n, {}) if family == "LSTM" else {}))
    rows += [(n, None, row) for n, row in theirs.items()]
    cells = tuple(_parameter_row(*row) for row in sorted(rows, key=lambda row: row[0]))
    columns = ("N", "head", "width", "body", "ensemble", "width (paper)", "body (paper)", "ensemble (paper)")
    notes = (
        "The arms of Table 4, counted from the tensors' shapes. `shared`: one frozen head for all; `local`: every "
        "expert trains its own; `untied`: EGGROLL's, counted in its body.",
        "Adam keeps two further numbers for every trained weight, with or without backpropagation.",
        *watermark_notes(plan),
    )
    return Table("table2", "Table 2. Parameters at fixed total size", columns, cells, notes)


def table3(plan: Plan, paper: PaperValues, costs: pd.DataFrame, steps: pd.DataFrame) -> Table:
    """Tabulate the same runs under several conventions of device time.

    Args:
        costs: rows of `costs.run_costs`.
        steps: rows of the reference measurement, for the seconds per step on an idle machine.
    """
    name = max(plan.config.products.fixed_size.arms, key=lambda arm: plan.arms[arm].experts)
    runs = plan.arm_runs[name]
    first, ids, s = runs[0], " ".join(run.id for run in runs), runs[0].settings
    alone = steps[steps["run"].isin(ids.split()) & (steps["n_pert"] == s.n_pert) & (steps["batch"] == s.batch)]
    step = alone.groupby("run")["aggregate_seconds"].last()
    theirs = {row["convention"]: row["gpu_hours"] for row in paper.tables["table3"]}
    recorded, jobs = (_spent(costs, runs, quantity) for quantity in ("aggregate device time", WHOLE_JOBS))
    rows = [
        ("recorded updates of every expert, added up", recorded, theirs["recorded_expert_mean_times"]),
        ("all the time of the jobs, validation and saving included", jobs, theirs["logged_physical_total"]),
        (
            "updates times the seconds of a step, timed alone",
            step * first.updates * s.accumulation,
            theirs["fixed_0.168_s"],
        ),
        ("updates times the paper's other step time, 0.140 s", [], theirs["fixed_0.140_s"]),
    ]
    cells = tuple((Cell(text), over_runs(values, 1, ids), number(hours, "paper", -1)) for text, values, hours in rows)
    timed = f"{step.mean():.3f} s for all {first.experts} experts, losses and combination alone"
    own = costs[costs["run"].isin(ids.split())]
    where = [f"The runs: {hardware(own)}. The step: {hardware(alone)}."] if len(step) else []
    notes = (
        f"Runs of `{name}`: {len(runs)}, each of {first.updates:,} updates of {first.experts} experts; a step: "
        f"{timed if len(step) else 'not timed'}. {RUN_NOTE}",
        "A convention is named with every time: they differ for one and the same run.",
        *where,
        *watermark_notes(plan),
    )
    columns = ("convention", "device seconds here", "GPU-hours of N=256 (paper)")
    return Table("table3", "Table 3. Conventions of device time", columns, cells, notes)


def table4(plan: Plan, paper: PaperValues, losses: pd.DataFrame) -> Table:
    """Tabulate test loss at equal budget, beside the paper's."""
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
                    *[NOT_RUN] * 5,
                    *_paper_cells(row),
                )
            )
    columns = (
        "method", "N", "n_pert", "updates", "operations", "test loss", "over seeds", "averaged iterate (ours)",
        "updates (paper)", "GPU-hours (paper)", "test loss (paper)",
    )  # fmt: skip
    notes = (
        LOSS_NOTE,
        f"{SEED_NOTE} Operations are of one run: both signs counted, head updates, validation and the seed run "
        "excluded. Times stand in the table of costs; the paper's GPU-hours are of an RTX 5090.",
        "`averaged iterate`: the exponential average of the weights, on the same documents (B3); not in the paper.",
        f"More of the paper's Figure 1: {'; '.join(map(_point, paper.tables['figure1_points']))}.",
        *watermark_notes(plan),
    )
    return Table("table4", "Table 4. Test loss at equal budget and total size", columns, tuple(cells), notes)


def _point(row: Mapping[str, Any]) -> str:
    """Format a point of Figure 1, such as `SOMA N=8, 700 GPU-hours: 1.71`."""
    name = method_label("-".join([row["method"], f"n{row['n']}", *([f"p{row['n_pert']}"] if "n_pert" in row else [])]))
    units = {"updates": "updates", "gpu_hours": "GPU-hours"}
    spent = [f"{row[key]:,} {unit}" for key, unit in units.items() if key in row]
    return f"{name}, {', '.join(spent)}: {row['test']:.2f}"


def table9(plan: Plan, paper: PaperValues, losses: pd.DataFrame) -> Table:
    """Tabulate losses of the same frozen checkpoints on the external corpus."""
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
    notes = (LOSS_NOTE, "Nothing was trained or chosen on this corpus.", *watermark_notes(plan))
    return Table("table9", "Table 9. External corpus, frozen checkpoints", columns, tuple(cells), notes)


def costs_table(plan: Plan, costs: pd.DataFrame) -> Table:
    """Tabulate the six cost quantities of every arm at the end of its budget, never merged."""
    cells = []
    for name, arm in _arms(plan):
        runs = plan.arm_runs[name]
        ids = " ".join(run.id for run in runs)
        spent = {quantity: _spent(costs, runs, quantity) for quantity in QUANTITIES}
        values = [
            number(float(found.mean()), "measured", -1 if "operations" in quantity else 1, ids)
            if quantity in SHARED
            else over_runs(found, 1, ids)
            for quantity, found in spent.items()
        ]
        cells.append((Cell(arm_label(arm)), *values, number(len(runs), "set", -1)))
    conventions = costs.drop_duplicates("quantity").set_index("quantity")
    units = [f"{q} ({conventions.loc[q, 'unit']})" for q in QUANTITIES]
    notes = [f"{q}: {conventions.loc[q, 'convention']}." for q in QUANTITIES]
    notes += [f"{RUN_NOTE} Device: {hardware(costs)}.", _company(costs), *watermark_notes(plan)]
    return Table("costs", "Costs, in their six quantities", ("method", *units, "runs"), tuple(cells), tuple(notes))


def _company(costs: pd.DataFrame) -> str:
    """Report the runs' shares of their processors, which reveal other load while times were taken."""
    shares = costs.groupby("run")["processor_share"].first()
    disturbed = shares[shares < 0.95].sort_values()
    note = f"Recorded updates of {len(shares)} runs had {shares.min():.2f} to {shares.max():.2f} of their threads' "
    note += "processors (on a CPU, less than 1 where something ran beside them)"
    worst = ", ".join(f"{run} {share:.2f}" for run, share in disturbed[:5].items())
    return f"{note}; below 0.95: {len(disturbed)}" + (f", the least {worst}." if worst else ".")


def _arms(plan: Plan) -> list[tuple[str, Arm]]:
    return [(name, plan.config.arms[name]) for name in plan.config.products.fixed_size.arms]


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


def _loss_cell(row: Any) -> Cell:
    return measured(row.loss, row.low, row.high, row.run)


def _spent(costs: pd.DataFrame, runs: list[RunSpec], quantity: str) -> pd.Series:
    """Return the final cost of every run."""
    ends = (costs["quantity"] == quantity) & (costs["update"] == runs[0].updates)
    return costs[ends & costs["run"].isin([run.id for run in runs])].drop_duplicates("run")["value"]


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
