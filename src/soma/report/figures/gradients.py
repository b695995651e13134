"""Gradient estimates: independent and summed losses (Figure 4), error (5), variance (10), a fixed objective (11)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from soma.analysis.gradients import by_end, means_over_runs
from soma.plan import Plan
from soma.report.colours import COLOURS, MUTED, Look, count_looks
from soma.report.draw import (
    ELSEWHERE,
    ENDS,
    INTERVALS,
    NORMAL,
    TEST,
    Point,
    categories,
    crosses,
    intervals,
    nothing,
    with_paper,
    zero,
)
from soma.report.figures import overlay
from soma.report.labels import agreement, arm_label
from soma.report.paper import PaperValues
from soma.report.place import Label, wrapped
from soma.report.style import Drawing, log_axis, panels
from soma.report.table import span


def _sizes(plan: Plan, arms: Iterable[str]) -> str:
    """Name N, width and number of seeds of arms, each as a range where arms differ."""
    runs = [plan.arm_runs[arm] for arm in arms]
    values = {
        "N": [own[0].experts for own in runs],
        "width": [own[0].settings.width for own in runs],
        "n": [len(own) for own in runs],
    }
    return ", ".join(f"{name} = {span(own)}" for name, own in values.items()) + " seeds"


def figure4(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw the test loss of both arms by update, early and late in training, and below it their difference."""
    columns = ["phase", "update", *_RULES, "difference", *ENDS, "seeds", "run"]
    drawn = rows.loc[rows["phase"].isin(["early", "late"]), columns]
    product = plan.config.products.paired
    theirs = list[Point]()
    for phase, key in (("early", "paired_reductions"), ("late", "paired_differences")):
        given = paper.tables["figure4"][phase]
        theirs += [{"phase": phase, "update": given["updates"], "difference": -value} for value in given[key]]
    note = (
        f"{_sizes(plan, (*product.early, *product.late))}. Above: mean test loss over seeds. Below: the paired "
        f"difference; below zero independent losses are better. At update 0 both arms have the same weights, so it "
        f"is 0. {INTERVALS} Crosses: the paper's seeds, N = "
        f"{paper.tables['figure4']['early']['n']}, on its own text, at its own number of updates."
    )
    from_seed = plan.arms[product.early[0]].start == "seed"
    titles = {
        "early": "From the seed run" if from_seed else "Early: a short run continued",
        "late": "Late: a trained ensemble continued",
    }
    figure, axes = panels(2, note, rows=2, size=(8.6, 6.2), sharex="col", gridspec_kw={"height_ratios": [1, 1.3]})
    labels = []
    for (above, below), (phase, name) in zip(axes.T, titles.items(), strict=True):
        own = drawn[drawn["phase"] == phase]
        above.set_title(name)
        if own.empty:
            nothing(above)
            nothing(below)
            continue
        ends = list[Label]()
        for rule, colour in zip(_RULES, COLOURS, strict=False):
            above.plot(own["update"], own[rule], color=colour, marker="o", markersize=3.5)
            ends.append(Label(rule, own["update"].iloc[-1], own[rule].iloc[-1], colour))
        labels.append((above, ends))
        below.plot(own["update"], own["difference"], color=MUTED, linewidth=1)
        intervals(below, own["update"], own, "difference", "black")
        crosses(below, [row for row in theirs if row["phase"] == phase], "update", "difference")
        zero(below)
        log_axis(below)
        for axis in (above, below):
            axis.ticklabel_format(axis="y", style="plain", useOffset=False)
        below.set_xlabel("updates")
    axes[0, 0].set_ylabel(TEST)
    axes[1, 0].set_ylabel("independent minus summed\n(nats per byte)")
    return Drawing(figure, with_paper(drawn, theirs), beside=labels)


_RULES = ("independent", "summed")
_ENDS = {"first": "At the first milestone", "last": "At the end of training"}


def figure5(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw relative squared error against seconds per step, summed over experts: by N, with lines over n_pert and B."""
    keys = ["experts", "end", "n_pert", "batch"]
    values = ["error", "error_se", "aggregate_seconds"]
    drawn = means_over_runs(by_end(rows), keys, values)
    base = plan.config.products.reference.settings[0]
    note = (
        f"Large points: n_pert = {base[0]}, B = {base[1]}, means over runs. Lines, of the fewest experts: more "
        "directions (solid), more sequences that all directions share (dotted). Bars: one standard error of a run's "
        f"mean over its {int(rows['repeats'].max())} estimates. The paper gives reductions, no points. "
        f"At the end {agreement(rows)}"
    )
    ends = [end for end in _ENDS if end in set(drawn["end"])]
    figure, axes = panels(len(ends), note, size=(4.3 * max(len(ends), 1.4), 4.2), sharey=True)
    labels = []
    for axis, end in zip(axes[0], ends, strict=True):
        labels.append((axis, _error_panel(axis, drawn[drawn["end"] == end], base, count_looks(plan))))
        axis.set_title({"first": "Untrained"}.get(end, _ENDS[end]))
        axis.set_xlabel("aggregate device time of a step (s)")
        axis.margins(0.24, 0.12)
        log_axis(axis)
        log_axis(axis, "y")
    axes[0, 0].set_ylabel("squared error / squared norm of the reference")
    return Drawing(figure, drawn, near=labels)


def _error_panel(axis: Axes, rows: pd.DataFrame, base: tuple[int, int], looks: Mapping[int, Look]) -> list[Label]:
    labels = []
    for experts, own in rows.groupby("experts"):
        colour = looks[experts]["color"]
        sweeps = {"n_pert": own[own["batch"] == base[1]], "batch": own[own["n_pert"] == base[0]]}
        for name, line in (("n_pert", "-"), ("batch", ":")):
            points = sweeps[name].sort_values(name)
            axis.errorbar(
                points["aggregate_seconds"], points["error"], yerr=points["error_se"], color=colour, linestyle=line,
                marker="o", markersize=3, linewidth=1.1, elinewidth=0.8,
            )  # fmt: skip
            end = points.iloc[-1]
            if experts == rows["experts"].min() and end[name] != base[name == "batch"]:
                text = f"{'B' if name == 'batch' else name} = {end[name]}"
                labels.append(Label(text, end["aggregate_seconds"], end["error"], MUTED))
        at = sweeps["n_pert"][sweeps["n_pert"]["n_pert"] == base[0]].iloc[0]
        axis.plot(at["aggregate_seconds"], at["error"], marker="o", markersize=7, color=colour)
        labels.append(Label(f"N={experts}", at["aggregate_seconds"], at["error"], colour))
    return labels


def figure10(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw relative variance against coordinates per expert and n_pert, in FP32 and FP64, with the prediction."""
    keys = ["experts", "end", "precision", "n_pert"]
    values = ["coordinates", "variance", "variance_se", "grouped", "grouped_se", "predicted"]
    drawn = means_over_runs(by_end(rows), keys, values)
    drawn.insert(1, "expert_coordinates", drawn["coordinates"] / drawn["experts"])
    drawn["double"] = drawn["precision"] == "fp64"
    most, product = int(drawn["n_pert"].max()), plan.config.products.variance
    theirs = overlay.variance(plan, paper) if most == paper.tables["table1"]["n_pert"] else []
    why = _why(plan, drawn[drawn["n_pert"] == most])
    note = (
        "Points: measured in FP32; squares: in FP64; lines: predicted. Text: each expert's own validation. Means over "
        f"{span([len(plan.arm_runs[arm]) for arm in product.arms])} runs (n, seeds) and {product.chunks} chunks; "
        f"bars: 95 % of one run and chunk over its {product.probes} probes. {why} "
        + (f"Crosses: the paper's after 10,000 updates, n_pert = {most}." if theirs else ELSEWHERE)
    )
    figure, axes = panels(2, note, size=(8.8, 4.5))
    left, right = axes[0]
    ends = _against_count(left, drawn[drawn["n_pert"] == most])
    crosses(left, theirs, "experts", "variance")
    lines = _against_directions(right, drawn[drawn["end"] == "last"], count_looks(plan))
    for axis in axes[0]:
        log_axis(axis, base=2)
        log_axis(axis, "y")
    sizes = drawn.groupby("experts")["expert_coordinates"].mean()
    widths = {plan.arms[arm].experts: plan.arm_runs[arm][0].settings.width for arm in product.arms}
    left.set_xticks(sizes.index, [f"{n}\n{widths[n]}\n{_short(size)}" for n, size in sizes.items()])
    left.set_xlabel("number of experts N, their width, and perturbed coordinates of one")
    left.set_ylabel("variance / squared norm of the gradient")
    left.set_title(f"Against N, n_pert = {most}")
    right.set_xlabel("n_pert")
    right.set_title("Against n_pert, at the end of training")
    drawn = with_paper(drawn.drop(columns="double"), theirs)
    return Drawing(figure, drawn, beside=[(left, ends), (right, lines)])


def _why(plan: Plan, rows: pd.DataFrame) -> str:
    """Say how far an expert's coordinates and the variance fall between the two largest N, and how heads bear on it."""
    runs = sorted((plan.arm_runs[arm][0] for arm in plan.config.products.variance.arms), key=lambda run: run.experts)
    words = "The prediction follows the perturbed coordinates of one expert, not N"
    if len(runs) < 2:
        return words + "."
    few, many = runs[-2:]
    end = rows[(rows["end"] == "last") & ~rows["double"]].set_index("experts")["variance"]
    words += f": from N={few.experts} to N={many.experts} they fall {few.model.size / many.model.size:.2f} times and "
    words += f"the variance at the end {end[few.experts] / end[many.experts]:.2f} times"
    if few.trains_head and not many.trains_head:
        words += f", since N={many.experts} shares one frozen head, and its bodies take what the heads leave"
    return words + "."


def _short(count: float) -> str:
    return f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"


def _against_count(axis: Axes, rows: pd.DataFrame) -> list[Label]:
    """Draw both ends of training side by side."""
    labels = []
    for colour, end, words, shift in (
        (COLOURS[0], "last", "end of\ntraining", 1.04), (COLOURS[1], "first", "first\nmilestone", 1 / 1.04)
    ):  # fmt: skip
        own = rows[rows["end"] == end].sort_values("experts")
        if own.empty:
            continue
        own = own.assign(at=own["experts"] * shift)
        _measured(axis, own, "at", "variance", colour)
        line = own[~own["double"]]
        axis.plot(line["at"], line["predicted"], color=colour, linewidth=1, alpha=0.7)
        labels.append(Label(words, line["at"].iloc[-1], line["predicted"].iloc[-1], colour))
    return labels


def _against_directions(axis: Axes, rows: pd.DataFrame, looks: Mapping[int, Look]) -> list[Label]:
    labels = []
    for experts, own in rows.sort_values("n_pert").groupby("experts"):
        colour = looks[experts]["color"]
        _measured(axis, own, "n_pert", "grouped", colour)
        line = own[~own["double"]]
        axis.plot(line["n_pert"], line["predicted"], color=colour, linewidth=1, alpha=0.7)
        tip = line.iloc[-1]
        labels.append(Label(f"N={experts}", tip["n_pert"], tip["predicted"], colour))
    return labels


def _measured(axis: Axes, rows: pd.DataFrame, x: str, y: str, colour: str) -> None:
    """Draw FP32 as points, and FP64 as squares around them."""
    looks: dict[bool, Any] = {
        False: {"marker": "o", "markersize": 3.5},
        True: {"marker": "s", "markersize": 7, "mfc": "none"},
    }
    for double, look in looks.items():
        own = rows[rows["double"] == double]
        error = NORMAL * own[f"{y}_se"].fillna(0.0)
        axis.errorbar(own[x], own[y], yerr=error, color=colour, linestyle="none", elinewidth=0.9, **look)


def figure11(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw a fixed separable objective: independent against summed losses, and the split of n_pert and B."""
    given = paper.tables["figure11"]
    variances = rows[rows["part"] == "variance"] if "quantity" in rows else rows[:0]
    split = rows[rows["part"] == "split"] if "group" in rows else rows[:0]
    theirs: list[dict[str, Any]] = []
    if len(variances) and variances["experts"].iloc[0] == paper.tables["figure4"]["early"]["n"]:
        theirs = [{"part": "variance", "quantity": "ratio", "at": 0, "measured": given["independent_over_summed"]}]
    columns = {
        "variance": ["part", "run", "quantity", "experts", "measured", "standard_error", "predicted"],
        "split": ["part", "run", "group", "batch", "n_pert", "error", "error_se", "predicted", "nu",
                  "best_measured", "best_predicted"],
    }  # fmt: skip
    drawn = rows[[c for c in dict.fromkeys(columns["variance"] + columns["split"]) if c in rows]]
    note = (
        f"{_sizes(plan, [plan.config.products.objective.arm])}. Training text; FP32 losses, FP64 differences. "
        f"A point per run, with its own marker; bars: 95 % over "
        f"sets of probes. Dashes and lines: predicted, right for each run{_noise(split)}. Rings: the smallest "
        "measured error; strokes at the foot: the B predicted to be best."
        + (" Cross: the paper's ratio." if theirs else "")
    )
    widths = {"width_ratios": [1, 0.7, 1.8]}
    figure, axes = panels(3, note, size=(9.4, 4.2), gridspec_kw=widths)
    _variances(axes[0, 0], variances[variances["quantity"] != "ratio"] if len(variances) else variances)
    _variances(axes[0, 1], variances[variances["quantity"] == "ratio"] if len(variances) else variances)
    crosses(axes[0, 1], theirs, "at", "measured")
    axes[0, 0].set_title("Independent or summed losses")
    axes[0, 0].set_ylabel("squared error / squared norm")
    axes[0, 1].set_title("Summed / independent")
    axes[0, 1].set_ylabel("ratio")
    axes[0, 2].set_title("Split of n_pert · B")
    if len(variances):
        log_axis(axes[0, 0], "y")
    labels = list[Label]()
    if split.empty:
        nothing(axes[0, 2])
    else:
        labels = _split_panel(axes[0, 2], split)
    return Drawing(figure, with_paper(drawn, theirs), beside=[(axes[0, 2], labels)])


def _noise(rows: pd.DataFrame) -> str:
    """Say how far apart the runs' ratios of gradient noise to signal lie."""
    if rows.empty:
        return ""
    return f", whose gradient noise over signal, ν, is {rows['nu'].min():.1f} to {rows['nu'].max():.1f}"


def _variances(axis: Axes, rows: pd.DataFrame) -> None:
    """Draw measured values of each quantity, side by side by run, with a dash at the prediction."""
    if rows.empty:
        nothing(axis)
        return
    names = list(dict.fromkeys(rows["quantity"]))
    for i, name in enumerate(names):
        own = rows[rows["quantity"] == name]
        at = i + (np.arange(len(own)) - (len(own) - 1) / 2) * 0.12
        axis.errorbar(at, own["measured"], yerr=NORMAL * own["standard_error"], fmt="o", markersize=4, color=COLOURS[i])
        axis.hlines(own["predicted"].mean(), i - 0.35, i + 0.35, color="black", linewidth=1, linestyle="--")
    axis.set_xticks(range(len(names)), names if len(names) > 1 else [""])
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.grid(visible=False, axis="x")


def _split_panel(axis: Axes, rows: pd.DataFrame) -> list[Label]:
    labels = []
    groups = sorted(rows["group"].dropna().unique())
    middle = iter(COLOURS[2:])
    for group in groups:
        # Independent and fully summed losses have the colours of Figure 4.
        colour = COLOURS[0] if group == 1 else COLOURS[1] if group == groups[-1] else next(middle)
        own = rows[rows["group"] == group]
        for (_, run), marker in zip(own.groupby("run", sort=False), itertools.cycle("os^Dv"), strict=False):
            axis.errorbar(
                run["batch"], run["error"], yerr=NORMAL * run["error_se"], fmt=marker, markersize=3.5, color=colour,
                elinewidth=0.8,
            )  # fmt: skip
            axis.plot(run["batch"], run["predicted"], color=colour, linewidth=0.8)
            best = run[run["batch"] == run["best_measured"]]
            axis.plot(best["batch"], best["error"], marker="o", markersize=9, mfc="none", color=colour)
            axis.plot(
                run["best_predicted"].iloc[0], 0.02, marker="|", markersize=8, color=colour, linestyle="none",
                transform=axis.get_xaxis_transform(),
            )  # fmt: skip
        tip = own[own["batch"] == own["batch"].max()].mean(numeric_only=True)
        words = "independent" if group == 1 else f"{int(group)} summed"
        labels.append(Label(words, tip["batch"], tip["predicted"], colour))
    log_axis(axis, base=2)
    log_axis(axis, "y")
    axis.set_xlabel("B")
    axis.set_ylabel("squared error / squared norm")
    return labels


def estimators(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw estimators at equal operations: loss, paired difference to the first, and relative variance."""
    loss = [f"loss_{end}" for end in ENDS]
    variance = ["relative_variance", "relative_variance_se"]
    drawn = rows[["arm", "loss", *loss, "difference", *ENDS, *variance, "forwards", "seeds", "run"]]
    drawn = drawn.assign(label=[arm_label(plan.arms[arm]) for arm in rows["arm"]])
    note = f"{INTERVALS} Relative variance: of estimates on one batch at the same weights, bars 95 % over them."
    at = np.arange(len(drawn))
    size = (8.6, 1.7 + 0.34 * max(2, len(drawn)))
    figure, axes = panels(3, note, size=size, sharey=True)
    left, middle, right = axes[0]
    intervals(left, list(at), drawn, "loss", COLOURS[0], vertical=False, prefix="loss_")
    left.set_xlabel(TEST)
    intervals(middle, list(at), drawn, "difference", COLOURS[0], vertical=False)
    zero(middle, vertical=True)
    middle.set_xlabel("first minus this (nats per byte)\nbelow zero: the first is better")
    right.errorbar(
        drawn["relative_variance"],
        at,
        xerr=NORMAL * drawn["relative_variance_se"],
        fmt="o",
        markersize=5,
        elinewidth=1.1,
        color=COLOURS[1],
    )
    log_axis(right)
    right.set_xlabel("relative variance (log scale)")
    categories(left, [wrapped(name) for name in drawn["label"]])
    for axis in (middle, right):
        axis.grid(visible=False, axis="y")
    return Drawing(figure, drawn)
