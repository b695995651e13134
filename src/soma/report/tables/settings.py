"""Settings, sizes and clusters: Tables 1 and 2, and the words of each cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from soma.plan import Plan
from soma.report.labels import (
    watermark_notes,
)
from soma.report.paper import PaperValues
from soma.report.table import NOT_RUN, Cell, Table, number
from soma.runs import RunSpec


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
    return Table(("setting", "paper", "here"), cells, notes)


def _setting(value: Any, status: Any) -> Cell:
    if isinstance(value, (int, float)):
        return Cell(f"{value:,}" if isinstance(value, int) else f"{value:g}", status, value)
    return Cell(str(value), status, str(value))


def _windows(entry: Mapping[str, Any]) -> str:
    return f"{entry['windows']:,} windows of {entry['documents']:,} documents"


def table2(plan: Plan, paper: PaperValues) -> Table:
    """Tabulate parameters at fixed total size, with each size in Table 4 once."""
    theirs = {row["n"]: row for row in paper.tables["table2"]}
    distinct: dict[tuple[int, str, int], RunSpec] = {}
    for name in plan.config.products.fixed_size.arms:
        run = plan.arm_runs[name][0]
        family = run.settings.method if run.family == "module" else run.family
        distinct.setdefault((run.experts, family, run.settings.width), run)
    rows: list[tuple[int, RunSpec | None, Mapping[str, Any]]] = []
    for (n, family, _), run in distinct.items():
        rows.append((n, run, theirs.pop(n, {}) if family == "lstm" else {}))
    rows += [(n, None, row) for n, row in theirs.items()]
    cells = tuple(_parameter_row(*row) for row in sorted(rows, key=lambda row: row[0]))
    columns = ("N", "head", "width", "body", "ensemble", "width (paper)", "body (paper)", "ensemble (paper)")
    notes = (
        "The arms of Table 4, counted from the tensors' shapes. `shared`: one frozen head for all; `local`: every "
        "expert trains its own; `untied`: EGGROLL's, counted in its body.",
        "Adam keeps two further numbers for every trained weight, with or without backpropagation.",
        *watermark_notes(plan),
    )
    return Table(columns, cells, notes)


def _parameter_row(n: int, run: RunSpec | None, paper: Mapping[str, Any]) -> tuple[Cell, ...]:
    if run is None:
        ours = (NOT_RUN,) * 4
    else:
        untied = run.family != "lstm"
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


def clusters(plan: Plan, paper: PaperValues, described: Mapping[str, Mapping[str, Any]]) -> Table:
    """Build the cluster table, one row per cluster of every N, from the JSON records that describe them."""
    rows, notes = [], []
    for facts in sorted(described.values(), key=lambda f: f["experts"]):
        n, windows = facts["experts"], facts["windows"]
        shares = [c["assigned"] / windows for c in facts["clusters"]]
        notes.append(
            f"N={n}: nearest-centroid shards hold {min(shares):.1%} to {max(shares):.1%} of the windows (even: "
            f"{1 / n:.1%}); the first {facts['prefix']} bytes find the cluster of the whole window in "
            f"{facts['prefix_agreement']:.1%} of {facts['prefix_agreement_windows']:,} training windows."
        )
        for cluster in facts["clusters"]:
            rows.append(
                (
                    Cell(str(n), "set", n),
                    Cell(str(cluster["cluster"]), "set", cluster["cluster"]),
                    Cell(" ".join(cluster["terms"])),
                    number(cluster["assigned"], "measured", -1),
                    number(100 * cluster["assigned"] / windows, "measured", 1),
                    number(cluster["balanced"], "measured", -1),
                )
            )
    columns = ("N", "cluster", "most distinctive words", "training windows", "share (%)", "balanced fit (sample)")
    return Table(columns, tuple(rows), (*notes, *watermark_notes(plan)))
