"""Measurements at checkpoints: Tables 8, 10, 12 and 13, variance, and the precision of the finite difference."""

from __future__ import annotations

import pandas as pd

from soma.plan import Plan
from soma.report.labels import arm_label, loss_cell, watermark_notes
from soma.report.paper import PaperValues
from soma.report.table import NOT_RUN, Cell, Status, Table, measured, number


def table8(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """How far two disjoint references agree, and the error of one step's estimate against them."""
    theirs = {row["n"]: row for row in paper.tables["table8"]}
    base = plan.config.products.reference.settings[0]
    own = rows[(rows["n_pert"] == base[0]) & (rows["batch"] == base[1])]
    cells: list[tuple[Cell, ...]] = []
    for arm in plan.config.products.reference.arms:
        runs = plan.arm_runs[arm]
        given = theirs.get(runs[0].experts, {})
        of_arm = own[own["run"].isin([run.id for run in runs])]
        for i, (update, found) in enumerate(of_arm.groupby("update")):
            cited = given.get("init" if i == 0 else "updates_10k", (None, None))
            names = " ".join(found["run"])
            cells.append(
                (
                    Cell(str(runs[0].experts), "set", runs[0].experts),
                    number(int(update), "set", -1),
                    number(int(found["reference_sequences"].iloc[0]), "set", -1),
                    Cell(
                        f"{found['cosine_distance'].mean():.5f}", "measured", found["cosine_distance"].mean(), run=names
                    ),
                    number(float(found["error"].mean()), "measured", -1, names),
                    number(float(found["aggregate_seconds"].mean()), "measured", 3, names),
                    number(cited[0], "paper", -1),
                    number(cited[1], "paper", 5),
                )
            )
    measured_counts = {plan.arms[arm].experts for arm in plan.config.products.reference.arms}
    for n, row in theirs.items():
        if n not in measured_counts:
            cited = row["updates_10k"]
            cells.append(
                (Cell(str(n), "paper", n), *[NOT_RUN] * 5, number(cited[0], "paper", -1), number(cited[1], "paper", 5))
            )
    columns = (
        "N", "update", "reference (sequences)", "cosine distance of two references", "relative squared error of a step",
        "device seconds of a step", "reference batch (paper)", "cosine distance (paper)",
    )  # fmt: skip
    notes = (
        f"A step has n_pert = {base[0]} and B = {base[1]}. Each expert's reference is a backpropagation gradient over "
        "random crops of its own shard; two are drawn independently. Means over runs.",
        "The paper's columns are at initialisation and after 10,000 updates; here the first and the last milestone.",
        *watermark_notes(plan),
    )
    return Table("table8", "Table 8. Reference gradients", columns, tuple(cells), notes)


def table10(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """The best allocation of the sweeps at each budget, ensemble validation, interpolated."""
    cells: list[tuple[Cell, ...]] = []
    for budget, found in rows.groupby("operations"):
        best = found[found["best"]].iloc[0]
        text = measured(best.loss, best.low, best.high, best.run)
        mark = "~" if best.interpolated else ""
        status: Status = "interpolated" if best.interpolated else "measured"
        runner_up = found[~found["best"]].sort_values("loss").head(1)
        second = (
            f"{runner_up['loss'].iloc[0]:.4f} (N={runner_up['experts'].iloc[0]}, n_pert={runner_up['n_pert'].iloc[0]}, "
            f"B={runner_up['batch'].iloc[0]})"
            if len(runner_up)
            else ""
        )
        cells.append(
            (
                number(float(budget), "set", -1),
                *(number(int(best[key]), "measured", -1, best.run) for key in ("experts", "n_pert", "batch")),
                Cell(mark + text.text, status, best.loss, best.low, best.high, best.run),
                Cell(second, "measured", run=" ".join(runner_up["run"])),
                *[Cell("")] * 3,
            )
        )
    for row in paper.tables["table10"]:
        low, high = row["range"]
        cells.append(
            (
                *[Cell("")] * 6,
                number(row["operations"], "paper", -1),
                Cell("8, 64, 1,024", "paper"),
                Cell(f"{low} to {high}", "paper"),
            )
        )
    columns = (
        "operations", "best N", "n_pert", "B", "validation loss", "next best", "operations (paper)",
        "best N, n_pert, B (paper)", "validation range (paper)",
    )  # fmt: skip
    notes = (
        "Ensemble validation, nats per byte, mean over seeds; `~`: interpolated between two milestones. An allocation "
        "whose run ended before the budget stands with its last loss; nothing is extrapolated.",
        "The best of several on the data that chose it looks better than it is. The paper's budgets are its own.",
        *watermark_notes(plan),
    )
    return Table("table10", "Table 10. Best allocation under a budget", columns, tuple(cells), notes)


def crossings_table(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """What every allocation of the sweeps spends until it reaches a loss that all reach."""
    cells = []
    for row in rows.sort_values("operations").itertuples():
        s = plan.arm_runs[row.arm][0].settings
        status: Status = "measured" if row.bound else "interpolated"
        spent = [(row.operations, -1), (row.device_seconds, 1), (row.elapsed_seconds, 1)]
        values = [number(float(value), status, digits, row.run) for value, digits in spent]
        mark = "≤ " if row.bound else "~"
        cells.append(
            (
                Cell(str(s.experts), "set", s.experts),
                number(s.n_pert, "set", -1),
                number(s.batch * s.accumulation, "set", -1),
                *(Cell(mark + cell.text, cell.status, cell.value, run=cell.run) for cell in values),
            )
        )
    theirs = paper.tables["figure13"]
    cited = ", ".join(f"{hours} GPU-hours for {name}" for name, hours in theirs["gpu_hours"].items())
    notes = (
        f"Ensemble validation {rows['target'].iloc[0]:.4f} nats per byte, the worst of all allocations' lowest losses; "
        "mean over seeds. `~`: interpolated between two milestones; `≤`: reached at the first one.",
        f"The paper, to reach {theirs['target']} at N=8: {cited}.",
        *watermark_notes(plan),
    )
    columns = ("N", "n_pert", "B", "operations", "device time (s)", "idealised elapsed (s)")
    return Table("crossings", "What it takes to reach one loss (Figure 13)", columns, tuple(cells), notes)


def table12(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Table:
    """Throughput of complete requests, routing included."""
    theirs = {row["n"]: row for row in paper.tables["table12"]}
    cells: list[tuple[Cell, ...]] = []
    for arm in plan.config.products.inference.arms:
        runs = plan.arm_runs[arm]
        found = rows[rows["run"].isin([run.id for run in runs])]
        names = " ".join(found["run"])
        given = theirs.get(runs[0].experts, {})
        cells.append(
            (
                Cell(arm_label(plan.arms[arm])),
                number(int(found["k"].iloc[0]), "set", -1),
                number(int(found["requests"].iloc[0]), "set", -1),
                number(float(found["scored_bytes_per_second"].mean()) / 1e6, "measured", 4, names),
                number(float(found["seconds"].mean()) * 1e3, "measured", 1, names),
                number(float(found["latency_seconds"].mean()) * 1e3, "measured", 2, names),
                number(100 * float(found["routing_share"].mean()), "measured", 2, names),
                number(float(found["peak_bytes"].mean()) / 2**20, "measured", 1, names),
                number(given.get("mtokens_per_s"), "paper", 3),
                number(given.get("latency_ms"), "paper", -1),
            )
        )
    measured_counts = {plan.arms[arm].experts for arm in plan.config.products.inference.arms}
    for n, row in theirs.items():
        if n not in measured_counts:
            cited = (number(row["mtokens_per_s"], "paper", 3), number(row["latency_ms"], "paper", -1))
            cells.append((Cell(f"N={n}", "paper", n), *[NOT_RUN] * 7, *cited))
    columns = (
        "ensemble", "k", "requests", "scored bytes per second (millions)", "time of a batch (ms)",
        "latency of one request (ms)", "routing (%)", "peak memory (MiB)", "Mtokens/s (paper)", "batch, ms (paper)",
    )  # fmt: skip
    first = rows.iloc[0]
    data = plan.config.data
    notes = (
        f"A request is {data.window} bytes, {data.prefix} of them routed and the rest scored: route, gather, run, "
        f"average, losses. Median of {int(first.repeats)} after warm-ups, mean over runs; trained weights.",
        f"Engine `{first.engine}` on {first.device}, {int(first.threads)} thread(s), alone on the machine. Peak: "
        f"{first.peak_kind}. The paper's are of an A40.",
        *watermark_notes(plan),
    )
    return Table("table12", "Table 12. Throughput of inference", columns, tuple(cells), notes)


def table13(plan: Plan, paper: PaperValues, serving: pd.DataFrame, rows: pd.DataFrame, costs: pd.DataFrame) -> Table:
    """What the throughput costs: loss reached and training spent."""
    speed = rows.set_index("run")["scored_bytes_per_second"]
    cells: list[tuple[Cell, ...]] = []
    for row in serving.itertuples():
        runs = plan.arm_runs[row.arm]
        end = costs[(costs["arm"] == row.arm) & (costs["update"] == runs[0].updates)]
        spent = end.groupby("quantity")["value"].mean()
        cells.append(
            (
                Cell(arm_label(plan.arms[row.arm])),
                number(runs[0].parameters, "measured", -1, row.run),
                number(runs[0].updates, "measured", -1, row.run),
                number(float(runs[0].operations(runs[0].updates)), "measured", -1, row.run),
                number(float(spent["aggregate device time"]), "measured", 1, row.run),
                number(float(spent["idealised elapsed time"]), "measured", 1, row.run),
                loss_cell(row),
                number(float(speed.loc[[r.id for r in runs]].mean()) / 1e6, "measured", 4, row.run),
                *[Cell("")] * 2,
            )
        )
    for row in paper.tables["table13"]:
        name = f"N={row['n']}, {row['gpu_hours']:,} GPU-hours"
        cited = (number(row["gpu_hours"], "paper", -1), number(row["test"], "paper", 2))
        cells.append((Cell(name, "paper"), number(row["parameters"], "paper", -1), *[Cell("")] * 6, *cited))
    columns = (
        "ensemble", "parameters", "updates", "operations", "device time (s)", "idealised elapsed (s)", "test loss",
        "scored bytes per second (millions)", "GPU-hours (paper)", "test (paper)",
    )  # fmt: skip
    notes = (
        "Losses are nats per byte on test; brackets: 95 % interval over documents. Times are means over seeds.",
        *watermark_notes(plan),
    )
    return Table("table13", "Table 13. Inference and training cost", columns, tuple(cells), notes)


def sizes_table(plan: Plan, rows: pd.DataFrame) -> Table:
    """The size curve (B7): which size and how many experts for one budget."""
    own = rows[rows["iterate"] == "last"].sort_values(["kind", "parameters"], ascending=[False, True])
    averaged = rows[rows["iterate"] == "average"].set_index("arm")
    cells = []
    for row in own.itertuples():
        average = averaged.loc[row.arm]
        cells.append(
            (
                Cell(arm_label(plan.arms[row.arm])),
                number(int(row.width), "set", -1),
                number(int(row.parameters), "measured", -1, row.run),
                number(float(row.operations), "measured", -1, row.run),
                measured(row.loss, row.low, row.high, row.run),
                measured(average.loss, average.low, average.high, average.run),
                Cell(str(row.seeds), "measured", row.seeds, run=row.run),
            )
        )
    columns = ("arm", "width", "parameters", "operations", "test loss, last", "test loss, averaged iterate", "seeds")
    notes = (
        "Not in the paper (B7): for one budget of operations, which size and how many experts? Nats per byte, mean of "
        "seeds, 95 % interval over documents.",
        *watermark_notes(plan),
    )
    return Table("sizes", "Size curve at equal operations", columns, tuple(cells), notes)


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
