"""Trained ensembles in use: Tables 12 and 13."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from soma.analysis.inference import median_and_range, token_operations
from soma.plan import Plan
from soma.report.labels import (
    RUN_NOTE,
    against_cells,
    arm_label,
    hardware,
    loss_cell,
    over_runs,
    watermark_notes,
)
from soma.report.paper import PaperValues
from soma.report.table import NONE, NOT_RUN, Cell, Table, number


def table12(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the throughput of complete requests, routing included."""
    theirs = {row["n"]: row for row in paper.tables["table12"]}
    cells: list[tuple[Cell, ...]] = []
    for arm in plan.config.products.inference.arms:
        runs = plan.arm_runs[arm]
        own = rows[rows["run"].isin([run.id for run in runs])]
        names = " ".join(own["run"])
        cells.append(
            (
                Cell(arm_label(plan.arms[arm])),
                number(int(own["k"].iloc[0]), "set", -1),
                number(int(own["requests"].iloc[0]), "set", -1),
                number(token_operations(plan, arm), "set", -1),
                over_runs(own["scored_bytes_per_second"] / 1e6, 4, names),
                over_runs(own["seconds"] * 1e3, 1, names),
                _latency(own["latency_seconds"] * 1e3, names),
                over_runs(100 * own["routing_share"], 2, names),
                over_runs(own["peak_bytes"] / 2**20, 1, names),
                number(len(own), "set", -1),
                *_throughput(theirs.pop(runs[0].experts, {})),
            )
        )
    cells += [(Cell(f"N={n}", "paper", n), *[NOT_RUN] * 9, *_throughput(row)) for n, row in theirs.items()]
    columns = (
        "ensemble", "k", "requests", "operations per byte", "scored bytes per second (millions)",
        "time of a batch (ms)",
        "latency of one request (ms)", "routing (%)", "peak memory (MiB)", "runs", "requests (paper)",
        "Mtokens/s (paper)", "batch, ms (paper)", "peak, GiB (paper)",
    )  # fmt: skip
    first = rows.iloc[0]
    data, given = plan.config.data, paper.tables["inference"]
    share = given["routing_share"]
    notes = (
        f"A request is {data.window} bytes, {data.prefix} of them routed and the rest scored: route, gather, run, "
        f"average, losses. Median of {int(first.repeats)} after warm-ups; trained weights. Operations per byte: of "
        "the k experts that are averaged, without routing.",
        f"{RUN_NOTE} Latency: median and range over runs, since one disturbed run would move a mean.",
        f"On {hardware(rows)}, alone on the machine. Peak: {first.peak_kind}.",
        f"The paper's are of an A40. There N=256 is {given['n256_over_n8']} times as fast as N=8 and "
        f"{given['n256_over_monolith']} times as fast as the monolith, for {given['training_compute_ratio']} times the "
        f"training of N=8; routing takes {share['n8']:.2%} at N=8 and {share['n256']:.2%} at N=256.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def _latency(values: pd.Series, runs: str) -> Cell:
    middle, low, high = median_and_range(values)
    spread = f" [{low:.2f} to {high:.2f}]" if len(values) > 1 else ""
    return Cell(f"{middle:.2f}{spread}", "measured", middle, low, high, runs)


def _throughput(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    digits = {"batch": -1, "mtokens_per_s": 3, "latency_ms": -1, "peak_gib": 1}
    return tuple(number(row.get(key), "paper", count) for key, count in digits.items())


def table13(plan: Plan, paper: PaperValues, serving: pd.DataFrame, rows: pd.DataFrame, costs: pd.DataFrame) -> Table:
    """Tabulate the cost of the throughput: loss and training."""
    product = plan.config.products.inference
    speed = rows.set_index("run")["scored_bytes_per_second"]
    cells: list[tuple[Cell, ...]] = []
    beside = []
    for row in serving.itertuples():
        runs = plan.arm_runs[row.arm]
        at = costs[(costs["arm"] == row.arm) & (costs["update"] == row.update)]
        own = [given for given in paper.tables["table13"] if given["n"] == runs[0].experts]
        # The paper's longest run of an N beside the end of ours, an earlier one beside an earlier milestone.
        given = (own[-1] if row.update == runs[0].updates else own[0]) if own else {}
        beside.append(given)
        cells.append(
            (
                Cell(arm_label(plan.arms[row.arm])),
                number(runs[0].parameters, "measured", -1, row.run),
                number(int(row.update), "measured", -1, row.run),
                number(float(runs[0].operations(row.update)), "measured", -1, row.run),
                *(
                    over_runs(at.loc[at["quantity"] == quantity, "value"], 1, row.run)
                    for quantity in ("aggregate device time", "idealised elapsed time")
                ),
                loss_cell(row),
                *(against_cells(row) if row.arm == product.many else (NONE, NONE)),
                over_runs(speed.loc[[r.id for r in runs]] / 1e6, 4, row.run),
                number(len(runs), "set", -1),
                *_trained(given),
            )
        )
    for given in paper.tables["table13"]:
        if given not in beside:
            name = f"N={given['n']}, {given['gpu_hours']:,} GPU-hours"
            cells.append((Cell(name, "paper", given["n"]), *[NOT_RUN] * 10, *_trained(given)))
    few = f"minus N={plan.arms[product.few].experts}"
    columns = (
        "ensemble", "parameters", "updates", "operations", "device time (s)", "idealised elapsed (s)", "test loss",
        few, f"{few}, over seeds", "scored bytes per second (millions)", "runs", "updates (paper)",
        "elapsed hours (paper)", "GPU-hours (paper)", "test (paper)",
    )  # fmt: skip
    notes = (
        f"Losses are nats per byte on test; brackets: 95 % interval over documents. {RUN_NOTE}",
        f"Training times: on {hardware(costs)}. Throughput: on {hardware(rows)}.",
        f"N={plan.arms[product.many].experts} has another row if a milestone comes closer to the elapsed time of "
        f"N={plan.arms[product.few].experts} at its end. The paper's runs of the same N stand beside ours; their "
        "parameters are in Table 2.",
        *watermark_notes(plan),
    )
    return Table(columns, tuple(cells), notes)


def _trained(row: Mapping[str, Any]) -> tuple[Cell, ...]:
    updates = row.get("updates")
    if isinstance(updates, list):
        spent = Cell(" to ".join(f"{count:,}" for count in updates), "paper", updates[-1])
    else:
        spent = number(updates, "paper", -1)
    return (
        spent,
        number(row.get("elapsed_hours"), "paper", -1),
        number(row.get("gpu_hours"), "paper", -1),
        number(row.get("test"), "paper", 2),
    )
