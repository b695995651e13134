"""Scaling and allocation on ensemble validation: Figures 7, 8, 13 and 14."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from soma.analysis.scaling import with_cheapest
from soma.analysis.verdict import difference_of
from soma.plan import Plan
from soma.report.colours import MUTED, Look, count_looks, swept_looks
from soma.report.draw import (
    CURVES,
    ELSEWHERE,
    ENDS,
    VALIDATION,
    crosses,
    curve,
    nothing,
    with_paper,
)
from soma.report.figures import overlay
from soma.report.paper import PaperValues
from soma.report.place import Label
from soma.report.style import Drawing, log_axis, panels
from soma.report.table import seed_counts

_AXES = {"experts": "Number of experts N", "n_pert": "Directions n_pert", "batch": "Sequences B"}


_COSTS = {
    "elapsed_seconds": "idealised elapsed time (s)",
    "device_seconds": "aggregate device time (s)",
    "operations": "arithmetic operations",
}


_COLUMNS = ["axis", "value", "arm", "update", "loss", *ENDS, "seeds", "run"]


def figure7(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw validation loss over idealised elapsed time, for N, n_pert and B."""
    return _sweeps(plan, paper, rows, ["elapsed_seconds"])


def figure8(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw validation loss over aggregate device time and over operations, for N, n_pert and B."""
    return _sweeps(plan, paper, rows, ["device_seconds", "operations"])


def _sweeps(plan: Plan, paper: PaperValues, rows: pd.DataFrame, costs: Sequence[str]) -> Drawing:
    own = [axis for axis in _AXES if axis in set(rows["axis"])]
    theirs, labels = overlay.swept(plan, paper), list[tuple[Axes, list[Label]]]()
    note = f"{_setting(plan, rows)} {CURVES} {overlay.note(theirs, ', its time on RTX 5090')}"
    size = (9.8, 1.5 + 2.8 * len(costs))
    figure, axes = panels(len(own), note, rows=len(costs), size=size, sharey=True)
    for line, cost in zip(axes, costs, strict=True):
        for axis, swept in zip(line, own, strict=True):
            panel = rows[rows["axis"] == swept]
            looks = swept_looks(plan)[swept]
            labels.append((axis, _sweep_panel(axis, panel, cost, looks)))
            crosses(axis, [p for p in theirs if p["axis"] == swept], cost, "loss", looks, "value")
            log_axis(axis)
            axis.set_xlabel(_COSTS[cost])
            axis.set_title(_AXES[swept])
        line[0].set_ylabel(VALIDATION)
    drawn = with_paper(rows[[*_COLUMNS, *costs]], theirs)
    return Drawing(figure, drawn, beside=labels)


def _setting(plan: Plan, rows: pd.DataFrame) -> str:
    """State the settings of the base arm, and the number of seeds of every curve."""
    base = plan.config.arms[plan.config.products.sweep.arm]
    sizes = f"N = {base.experts}, n_pert = {base.n_pert}, B = {base.batch}, width {base.width}"
    seeds = seed_counts(rows["seeds"])
    return f"Else {sizes}; seeds: {seeds}. A colour scale for each setting, from dark (few) to light (many)."


def _sweep_panel(axis: Axes, rows: pd.DataFrame, cost: str, looks: Mapping[int, Look]) -> list[Label]:
    ends = []
    for value, points in rows.sort_values("update").groupby("value"):
        curve(axis, points, cost, looks[value])
        ends.append(Label(f"{value}", points[cost].iloc[-1], points["loss"].iloc[-1], looks[value]["color"]))
    return ends


def figure13(plan: Plan, paper: PaperValues, rows: pd.DataFrame, crossings: pd.DataFrame) -> Drawing:
    """Draw loss against operations for every allocation of n_pert and B, the Pareto front, and the target loss."""
    own = with_cheapest(plan, rows)
    theirs = overlay.allocated(plan, paper)
    note = (
        f"{_setting(plan, own)} Violet: n_pert; brown: B. Dashed line: the target of the table of crossings; stars: "
        "where a curve crosses it. Ringed and joined: no allocation reached that loss with fewer operations, where at "
        f"least two curves cover them. {CURVES} "
    )
    note += overlay.note(theirs, " at n_pert=64, B=1024, its best under three budgets")
    figure, axes = panels(1, note, size=(7.6, 4.9))
    axis = axes[0, 0]
    groups, ends, looks = dict(list(own.groupby(["n_pert", "batch"]))), [], swept_looks(plan)
    if not groups:
        nothing(axis)
    for (n_pert, batch), points in groups.items():
        end = points.iloc[-1]
        look = looks[end["axis"]][end["value"]]
        curve(axis, points, "operations", look)
        ends.append(Label(f"n_pert={n_pert}, B={batch}", end["operations"], end["loss"], look["color"]))
    crosses(axis, theirs, "operations", "loss")
    front = own[own["cheapest"]].sort_values("operations")
    axis.plot(front["operations"], front["loss"], color="black", linewidth=0.9, linestyle="--", zorder=1.5)
    axis.plot(front["operations"], front["loss"], "o", markersize=9, mfc="none", color="black", markeredgewidth=0.8)
    met = crossings[crossings["reached"] & crossings["arm"].isin(own["arm"])]
    if groups:
        target = float(crossings["target"].iloc[0])
        axis.axhline(target, color=MUTED, linewidth=1.0, linestyle=(0, (6, 3)), zorder=1.2)
        axis.plot(met["operations"], met["target"], "*", markersize=11, color="black", mfc="white", zorder=4)
        log_axis(axis)
        ends.append(Label(f"target {target:.3f}", axis.get_xlim()[1], target, MUTED))
    axis.set_xlabel(_COSTS["operations"])
    axis.set_ylabel(VALIDATION)
    reached = met.set_index("arm")["operations"]
    drawn = own[["n_pert", "batch", *_COLUMNS[2:], "operations", "cheapest"]]
    drawn = drawn.assign(operations_to_target=drawn["arm"].map(reached))
    return Drawing(figure, with_paper(drawn, theirs), beside=[(axis, ends)])


def figure14(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw the best N under a total budget of operations and a budget per expert."""
    columns = ["total", "per_expert", "best", "second", "loss", "difference", *ENDS, "seeds", "run"]
    note = "White: the curves of fewer than two cover the budgets, so nothing was compared. In brackets and pale: the "
    note += "interval of the difference to the second best, over documents or over seeds, includes zero or is missing "
    note += f"(one seed). {ELSEWHERE}"
    figure, axes = panels(1, note, size=(7.2, 5.2))
    axis = axes[0, 0]
    if rows.empty:
        nothing(axis)
    else:
        _map(axis, rows, count_looks(plan))
    return Drawing(figure, rows.reindex(columns=columns))


def _map(axis: Axes, rows: pd.DataFrame, looks: Mapping[int, Look]) -> None:
    totals, each = (np.sort(rows[column].unique()) for column in ("total", "per_expert"))
    counts = sorted(looks)
    widths, heights = _edges(totals), _edges(each)
    for row in rows.itertuples():
        i, j = np.searchsorted(totals, row.total), np.searchsorted(each, row.per_expert)
        corner, size = (widths[i], heights[j]), (widths[i + 1] - widths[i], heights[j + 1] - heights[j])
        decided = difference_of(row).support() == "for"
        shade, alpha = looks[row.best]["color"], 0.85 if decided else 0.3
        axis.add_patch(Rectangle(corner, *size, facecolor=shade, edgecolor="white", linewidth=0.5, alpha=alpha))
        text = str(row.best) if decided else f"({row.best})"
        dark = decided and counts.index(row.best) < 0.6 * len(counts)
        colour = "white" if dark else "black"
        axis.text(row.total, row.per_expert, text, ha="center", va="center", fontsize=7, color=colour)
    axis.set_xlim(widths[0], widths[-1])
    axis.set_ylim(heights[0], heights[-1])
    log_axis(axis)
    log_axis(axis, "y")
    axis.grid(visible=False)
    axis.set_xlabel("operations in all")
    axis.set_ylabel("operations of each expert")


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the edges of the cells around values on a log axis."""
    if len(values) == 1:
        return values[0] * np.array([0.7, 1.4])
    middles = np.sqrt(values[1:] * values[:-1])
    return np.concatenate([[values[0] ** 2 / middles[0]], middles, [values[-1] ** 2 / middles[-1]]])
