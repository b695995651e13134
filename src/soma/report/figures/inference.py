"""Trained ensembles in use: loss, time and throughput (Figures 6, 15), active experts (16), pairs of experts (17)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from soma.analysis.costs import seconds_of_arms
from soma.analysis.inference import throughput
from soma.plan import Plan
from soma.report.colours import MARKERS, MUTED, arm_looks
from soma.report.draw import (
    CURVES,
    ENDS,
    INTERVALS,
    TEST,
    VALIDATION,
    crosses,
    curve,
    intervals,
    nothing,
    with_paper,
)
from soma.report.figures import overlay
from soma.report.paper import PaperValues
from soma.report.place import Label
from soma.report.style import Drawing, log_axis, panels
from soma.report.table import significant, span

_TIMES = {"elapsed_seconds": "idealised elapsed time", "device_seconds": "aggregate device time"}
"""Columns of Figure 6, and the cost quantities that they hold."""
_MANY = 2000
"""Points from which on a vector file would be large."""


def figure6(
    plan: Plan, paper: PaperValues, losses: pd.DataFrame, costs: pd.DataFrame, inference: pd.DataFrame
) -> Drawing:
    """Draw validation loss against elapsed and device time of training, and the lowest against throughput."""
    product, looks, labels = plan.config.products.inference, arm_looks(plan), list[Label]()
    drawn = _training(plan, losses, costs, inference)
    note = f"{CURVES} Right: the lowest loss of the milestones on the left, which picks it on the text that it stands "
    note += f"for; {INTERVALS[0].lower()}{INTERVALS[1:]} Horizontal: least to most throughput over the runs. "
    note += "The paper's numbers, of other sizes, text and devices, are not drawn."
    figure, axes = panels(3, note, size=(10.4, 4.3), sharey=True)
    *training, right = axes[0]
    for axis, (column, quantity) in zip(training, _TIMES.items(), strict=True):
        for arm in product.arms:
            curve(axis, drawn[drawn["arm"] == arm], column, looks[arm])
        log_axis(axis)
        axis.set_xlabel(f"{quantity} of training (s)")
    for arm in product.arms:
        best, colour = drawn[(drawn["arm"] == arm) & drawn["lowest"]], looks[arm]["color"]
        right.hlines(best["loss"], best["slowest"], best["fastest"], color=colour, linewidth=1.1)
        intervals(right, best["bytes_per_second"], best, "loss", colour, marker=looks[arm]["marker"])
        labels.append(Label(_sized(plan, arm), best["bytes_per_second"].iloc[0], best["loss"].iloc[0], colour))
    right.margins(x=0.35)
    log_axis(right)
    right.set_xlabel("scored bytes per second of inference")
    training[0].set_ylabel(VALIDATION)
    return Drawing(figure, drawn, near=[(right, labels)])


def _training(plan: Plan, losses: pd.DataFrame, costs: pd.DataFrame, inference: pd.DataFrame) -> pd.DataFrame:
    """Return the validation loss of every arm at every milestone, its times, and its throughput at the lowest one."""
    times = {column: seconds_of_arms(costs, quantity) for column, quantity in _TIMES.items()}
    frames = []
    for arm in plan.config.products.inference.arms:
        own = losses[
            (losses["set"] == "validation")
            & (losses["arm"] == arm)
            & losses["seed"].isna()
            & (losses["iterate"] == "last")
            & (losses["k"] == plan.arms[arm].active)
        ].sort_values("update")
        frame = own[["arm", "update", "loss", *ENDS, "seeds", "run"]].reset_index(drop=True)
        for column, seconds in times.items():
            frame[column] = [seconds.loc[(arm, update)] for update in frame["update"]]
        frame["lowest"] = frame.index == frame["loss"].idxmin()
        frame["bytes_per_second"], frame["slowest"], frame["fastest"] = throughput(plan, inference, arm)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def figure15(plan: Plan, paper: PaperValues, serving: pd.DataFrame, at_one_cost: pd.DataFrame) -> Drawing:
    """Draw test loss against the operations of a byte, at one training cost and at the ends of the runs."""
    theirs, product = overlay.served(plan, paper), plan.config.products.inference
    ends = serving[[row.update == plan.arm_runs[row.arm][0].updates for row in serving.itertuples()]]
    ends = ends.drop(columns=ENDS, errors="ignore").rename(columns={f"loss_{end}": end for end in ENDS})
    columns = ["arm", "token_operations", "loss", *ENDS, "seeds", "run"]
    parts = [
        at_one_cost[[*columns, "interpolated", "device_seconds"]].assign(panel="left"),
        ends[columns].assign(panel="right"),
    ]
    spent = significant(float(at_one_cost["device_seconds"].iloc[0]))
    missing = [f"N={plan.arms[row.arm].experts}" for row in at_one_cost.itertuples() if not row.seeds]
    note = (
        f"{INTERVALS} An interval over seeds that is much wider than the others is cut at the edge. Left: interpolated "
        "between milestones where none lies there. "
    )
    note += f"Not left, since their curves do not cover it: {', '.join(missing)}. " if missing else ""
    figure, axes = panels(2, note + overlay.note(theirs, ", right"), size=(9.4, 4.4), sharey=True)
    near = []
    for axis, part, title in zip(
        axes[0], parts, (f"After {spent} s of device time", "At the ends of the runs"), strict=True
    ):
        near.append((axis, _served(plan, axis, part[part["loss"].notna()])))
        axis.set_title(title)
    crosses(axes[0, 1], theirs, "token_operations", "loss", arm_looks(plan))
    for axis in axes[0]:
        axis.margins(0.3, 0.15)
        log_axis(axis)
        axis.set_xlabel(f"operations per byte of the min({_most(plan, product.arms)}, N) averaged experts")
    # The interval over two seeds can be wider than everything else together.
    points = [float(point["loss"]) for point in theirs]
    low = min(*(part["low"].min() for part in parts), *points)
    high = max(*(part["high"].max() for part in parts), *points)
    axes[0, 0].set_ylim(low - 0.3 * (high - low), high + 0.3 * (high - low))
    axes[0, 0].set_ylabel(TEST)
    return Drawing(figure, with_paper(pd.concat(parts, ignore_index=True), theirs), near=near)


def _most(plan: Plan, arms: Sequence[str]) -> int:
    return max(plan.arms[arm].active for arm in arms)


def _served(plan: Plan, axis: Axes, rows: pd.DataFrame) -> list[Label]:
    looks, labels = arm_looks(plan), []
    for i, arm in enumerate(rows["arm"]):
        row, look = rows.iloc[[i]], looks[arm]
        intervals(axis, row["token_operations"], row, "loss", look["color"], marker=look["marker"])
        labels.append(Label(_sized(plan, arm), row["token_operations"].iloc[0], row["loss"].iloc[0], look["color"]))
    return labels


def _sized(plan: Plan, arm: str) -> str:
    """Return the label of an arm among arms of different N and width, with its number of seeds n."""
    own = plan.arms[arm]
    return f"{own.label or f'N={own.experts}, width {own.width}'} (n={len(plan.arm_runs[arm])})"


def figure16(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw loss against the number of active experts, for arms of the sweep (fixed width) and for other arms."""
    theirs, looks = overlay.active(plan, paper), arm_looks(plan)
    note = f"{CURVES} n: seeds. The dashed line is k=4. {overlay.note(theirs)}"
    swept = rows["arm"].isin(plan.groups["sweep"])
    parts = {"Fixed width, after {} updates": rows[swept], "Equal total size, after {} updates": rows[~swept]}
    parts = {title: part for title, part in parts.items() if len(part)}
    figure, axes = panels(len(parts), note, size=(5.2 * len(parts) + 1.6 * (len(parts) == 1), 4.4))
    beside = []
    for axis, (title, part) in zip(axes[0], parts.items(), strict=True):
        ends = []
        for arm, points in part.groupby("arm", sort=False):
            points = points.sort_values("k")
            curve(axis, points, "k", looks[arm])
            end = points.iloc[-1]
            ends.append(Label(_sized(plan, str(arm)), end["k"], end["loss"], looks[arm]["color"]))
        crosses(axis, [point for point in theirs if point["arm"] in set(part["arm"])], "k", "loss", looks)
        axis.axvline(4, color=MUTED, linewidth=0.8, linestyle="--", zorder=1)
        log_axis(axis, base=2)
        counts = sorted(part["k"].unique())
        axis.set_xticks([k for k in counts if k in (3, 6, 12) or k & (k - 1) == 0])
        axis.set_xticks([k for k in counts if k <= 16], minor=True)
        axis.set_title(title.format(span(plan.arm_runs[arm][0].updates for arm in part["arm"])))
        axis.set_xlabel("active experts k")
        beside.append((axis, ends))
    axes[0, 0].set_ylabel(VALIDATION)
    return Drawing(figure, with_paper(rows, theirs), beside=beside)


def figure17(plan: Plan, paper: PaperValues, rows: pd.DataFrame, groups: pd.DataFrame) -> Drawing:
    """Draw the gain from averaging a pair of experts against the similarity of their errors."""
    pairs, together = (rows[rows["part"] == part] for part in ("pairs", "complementarity"))
    theirs = paper.tables["figure17"]["mean_gain"]
    note = (
        "All tokens of ensemble validation, without routing. p: share of permutations of the experts (Mantel) with an "
        f"equally or more negative rank correlation. The paper's mean gain at N=256: {theirs}, other text."
    )
    drawn = rows[["part", "run"]][:0]
    figure, axes = panels(1, note, size=(8.2, 4.4))
    axis, labels = axes[0, 0], list[Label]()
    if pairs.empty:
        nothing(axis, "no pairs were measured")
        return Drawing(figure, drawn)
    columns = ["run", "experts", "correlation", "gain"]
    drawn = pd.concat([pairs[[*columns, "first", "second"]].assign(pairs=1), groups[[*columns, "pairs"]]])
    by_run = together.set_index("run")
    arm = plan.config.products.active.pairs
    colour = arm_looks(plan)[arm]["color"]
    for (run, means), marker in zip(groups.groupby("run", sort=False), itertools.cycle(MARKERS), strict=False):
        own = pairs[pairs["run"] == run]
        axis.plot(own["correlation"], own["gain"], marker, markersize=3, color=colour, alpha=0.3, markeredgewidth=0,
                  rasterized=len(own) > _MANY)  # fmt: skip
        axis.plot(means["correlation"], means["gain"], f"{marker}-", markersize=5, color=colour, linewidth=1.1)
        test = by_run.loc[run]
        words = f"{run}: Spearman " + f"{test['spearman']:.2f}\n".replace("-", "−") + _p(test)
        labels.append(Label(words, means["correlation"].iloc[-1], means["gain"].iloc[-1], colour))
    count = len(pairs) // pairs["run"].nunique()
    axis.set_title(f"{_sized(plan, arm)}: {count:,} pairs for each seed, points of {span(groups['pairs'])}")
    axis.set_xlabel("correlation of both experts' losses, less the mean over experts")
    axis.set_ylabel("gain of averaging the pair\n(nats per byte)")
    return Drawing(figure, drawn, beside=[(axis, labels)])


def _p(test: pd.Series) -> str:
    """Format the p-value of a permutation test, which has a smallest value."""
    count = int(test["permutations"])
    if test["p_value"] <= 1 / (count + 1) * (1 + 1e-9):
        return f"p ≤ {significant(1 / count)}, the smallest that {count:,} permutations can give"
    return f"p = {test['p_value']:.2g}"
