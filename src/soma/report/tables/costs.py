"""Costs: conventions of device time (Table 3), the six quantities, and seconds of a step."""

from __future__ import annotations

import pandas as pd

from soma.analysis.costs import QUANTITIES, WHOLE_JOBS, at_budget, processor_shares, seconds_per_update
from soma.analysis.scaling import AXES, variants
from soma.plan import Plan
from soma.report.labels import (
    RUN_NOTE,
    arm_label,
    hardware,
    over_runs,
    watermark_notes,
)
from soma.report.paper import PaperValues
from soma.report.table import NOT_RUN, Cell, Table, number

SHARED = ("arithmetic operations", "preprocessing")
"""Quantities shared by all runs of an arm."""


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
    fixed, other = (name for name in theirs if name.startswith("fixed"))  # updates times a fixed time of a step
    recorded, jobs = (at_budget(costs, runs, quantity) for quantity in ("aggregate device time", WHOLE_JOBS))
    rows = [
        ("recorded updates of every expert, added up", recorded, theirs["recorded_expert_mean_times"]),
        ("all the time of the jobs, validation and saving included", jobs, theirs["logged_physical_total"]),
        (
            "updates times the seconds of a step, timed alone",
            step * first.updates * s.accumulation,
            theirs[fixed],
        ),
        (f"updates times the paper's other step time, {other.split('_')[1]} s", [], theirs[other]),
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
    return Table(columns, cells, notes)


def costs(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Tabulate the six cost quantities of every arm at the end of its budget, never merged."""
    cells = []
    for name in plan.config.products.fixed_size.arms:
        runs = plan.arm_runs[name]
        ids = " ".join(run.id for run in runs)
        spent = {quantity: at_budget(rows, runs, quantity) for quantity in QUANTITIES}
        shown = [
            number(float(values.mean()), "measured", -1 if "operations" in quantity else 1, ids)
            if quantity in SHARED
            else over_runs(values, 1, ids)
            for quantity, values in spent.items()
        ]
        cells.append((Cell(arm_label(plan.arms[name])), *shown, number(len(runs), "set", -1)))
    conventions = rows.drop_duplicates("quantity").set_index("quantity")
    units = [f"{q} ({conventions.loc[q, 'unit']})" for q in QUANTITIES]
    notes = [f"{q}: {conventions.loc[q, 'convention']}." for q in QUANTITIES]
    notes += [f"{RUN_NOTE} Device: {hardware(rows)}.", _load_note(rows), *watermark_notes(plan)]
    return Table(("method", *units, "runs"), tuple(cells), tuple(notes))


def _load_note(costs: pd.DataFrame) -> str:
    """Report the runs' shares of their processors, which reveal other load while times were taken."""
    shares = processor_shares(costs)
    disturbed = shares[shares < 0.95].sort_values()
    note = f"Recorded updates of {len(shares)} runs had {shares.min():.2f} to {shares.max():.2f} of their threads' "
    note += "processors (on a CPU, less than 1 where something ran beside them)"
    worst = ", ".join(f"{run} {share:.2f}" for run, share in disturbed[:5].items())
    return f"{note}; below 0.95: {len(disturbed)}" + (f", the least {worst}." if worst else ".")


def steps(plan: Plan, paper: PaperValues, costs: pd.DataFrame) -> Table:
    """Tabulate the time of a global step as N, n_pert or B grows, from recorded updates."""
    names = dict(zip(AXES, ("n", "n_pert_at_n8", "batch_at_n8"), strict=True))
    theirs = {axis: dict(paper.tables["figure7"]["seconds_per_update"][name]) for axis, name in names.items()}
    shares = processor_shares(costs)
    cells: list[tuple[Cell, ...]] = []
    for axis in AXES:
        for value, arm in [(value, arm) for name, value, arm in variants(plan) if name == axis]:
            runs = plan.arm_runs[arm]
            ids = " ".join(run.id for run in runs)
            seconds = [
                seconds_per_update(costs, runs, quantity)
                for quantity in ("aggregate device time", "idealised elapsed time")
            ]
            share = shares.loc[[run.id for run in runs]].min()
            cells.append(
                (
                    Cell(AXES[axis]),
                    number(value, "set", -1),
                    *(over_runs(per_run, 4, ids) for per_run in seconds),
                    number(float(share), "measured", 2, ids),
                    number(len(runs), "set", -1),
                    number(theirs[axis].pop(value, None), "paper", 3),
                )
            )
        for value, reported in theirs[axis].items():
            cells.append((Cell(AXES[axis]), number(value, "paper", -1), *[NOT_RUN] * 4, number(reported, "paper", 3)))
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
    return Table(columns, tuple(cells), notes)
