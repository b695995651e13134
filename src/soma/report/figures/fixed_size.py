"""Equal total size: Figure 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from soma.analysis.costs import seconds_of_arms
from soma.plan import Plan
from soma.report.colours import MUTED, Look, arm_looks
from soma.report.draw import (
    CURVES,
    ENDS,
    INTERVALS,
    TEST,
    categories,
    crosses,
    curve,
    intervals,
    with_paper,
    zero,
)
from soma.report.figures import overlay
from soma.report.labels import arm_label
from soma.report.paper import PaperValues
from soma.report.place import Label
from soma.report.style import Drawing, log_axis, panels

_NEAR = 0.3
"""Nats per byte; arms that end further from SOMA have their difference written at the edge of the panel."""
_MARGIN = 0.06


def figure1(
    plan: Plan, paper: PaperValues, losses: pd.DataFrame, costs: pd.DataFrame, differences: pd.DataFrame,
    sizes: pd.DataFrame | None, ngrams: pd.DataFrame,
) -> Drawing:  # fmt: skip
    """Draw test loss against operations and device time at equal total size and, wide, SOMA's loss minus each arm's.

    Smaller monoliths of the same budget are drawn at their ends, n-gram models of the training text as lines.
    """
    drawn, looks, theirs = _curves(plan, losses, costs, differences), arm_looks(plan), overlay.fixed_size(plan, paper)
    small, references = _smaller(plan, sizes, costs), ngrams[ngrams["set"] == "test"]
    hollow = "Hollow: smaller monoliths at the end of the same budget. " if len(small) else ""
    note = f"{CURVES} {hollow}Dashed: n-gram models of the training text. "
    note += "Below: SOMA's loss minus that of the arm in whose row it stands, both at the end of their budgets "
    note += f"and paired by document and seed. {INTERVALS} "
    note += "Crosses: the paper's, by its updates; N=8's by the mean of its experts. " if theirs else (
        "The paper's points are not drawn: they are of 8.4 million parameters on other text. "
    )  # fmt: skip
    note += _described(plan, [*plan.config.products.fixed_size.arms, *small["arm"]])
    ends = drawn.drop_duplicates("arm", keep="last").sort_values("loss")
    compared = ends[ends["arm"] != plan.config.products.fixed_size.soma]
    compared = compared.assign(height=np.arange(len(compared)))
    figure, axes = panels(2, note, 2, (10.4, 9.2), gridspec_kw={"height_ratios": [1.6, 1]})
    (left, middle), gains = axes[0], _wide(figure, axes[1])
    middle.sharey(left)
    middle.tick_params(labelleft=False)
    crosses(left, theirs, "operations", "loss", looks)
    for axis, x, name in ((left, "operations", "arithmetic operations"),
                          (middle, "device_seconds", "aggregate device time (s)")):  # fmt: skip
        for arm, points in drawn.groupby("arm", sort=False):
            curve(axis, points, x, looks[arm])
        for row in small.itertuples():
            look = looks[row.arm] | {"markerfacecolor": "white", "markersize": 5, "linestyle": "none"}
            axis.plot(getattr(row, x), row.loss, **look)
        for loss in references["loss"]:
            axis.axhline(loss, color=MUTED, linewidth=0.7, linestyle="--", zorder=1)
        log_axis(axis)
        axis.set_xlabel(name)
    left.set_ylim(*_limits(drawn, [*small["loss"], *references["loss"], *(float(p["loss"]) for p in theirs)]))
    left.set_ylabel(TEST)
    heights = compared.set_index("arm")["height"]
    reported = [point | {"height": heights[point["arm"]]} for point in theirs if "difference" in point]
    crosses(gains, reported, "difference", "height", looks)
    _gains(gains, compared, [point["difference"] for point in reported], looks)
    experts = plan.arms[plan.config.products.fixed_size.soma].experts
    gains.set_ylabel("this arm")
    gains.set_xlabel(f"SOMA N={experts} minus this arm (nats per byte); negative: SOMA is better")
    labels = [
        Label(r.label, r.device_seconds, r.loss, looks[r.arm]["color"])
        for frame in (ends, small) for r in frame.itertuples()
    ]  # fmt: skip
    edge = float(middle.get_xlim()[1])
    labels += [Label(f"{r.model}: {r.loss:.3f}", edge, r.loss, MUTED) for r in references.itertuples()]
    return Drawing(figure, with_paper(pd.concat([drawn, small], ignore_index=True), theirs), beside=[(middle, labels)])


def _wide(figure: Figure, row: Sequence[Axes]) -> Axes:
    """Replace the axes of a row by one as wide as all."""
    grid: Any = row[0].get_gridspec()
    for axis in row:
        axis.remove()
    return figure.add_subplot(grid[1, :])


def _described(plan: Plan, arms: Sequence[str]) -> str:
    """Name the widths and the number of seeds of arms."""
    each = [f"{arm_label(plan.arms[a])}: {plan.arms[a].width} ({len(plan.arm_runs[a])})" for a in arms]
    return f"Width (seeds): {'; '.join(each)}."


def _limits(drawn: pd.DataFrame, others: Sequence[float]) -> tuple[float, float]:
    """Return loss limits that contain the ends of all arms and everything else that is drawn; curves start above."""
    ends = drawn.drop_duplicates("arm", keep="last")
    values = np.array([*ends["low"], *ends["high"], *others], float)
    low, high = np.nanmin(values), np.nanmax(values)
    return float(low - _MARGIN * (high - low)), float(high + _MARGIN * (high - low))


def _smaller(plan: Plan, sizes: pd.DataFrame | None, costs: pd.DataFrame) -> pd.DataFrame:
    """Return the ends of the size curve's arms that are not compared at equal total size, in the columns of curves."""
    if sizes is None:
        return pd.DataFrame(columns=["arm", "label", "operations", "loss", *ENDS, "seeds", "run"])
    rows = sizes[(sizes["iterate"] == "last") & ~sizes["arm"].isin(plan.config.products.fixed_size.arms)]
    rows = rows[["arm", "operations", "loss", *ENDS, "seeds", "run"]].reset_index(drop=True)
    seconds = seconds_of_arms(costs, "aggregate device time")
    rows.insert(1, "label", [arm_label(plan.arms[arm]) for arm in rows["arm"]])
    rows["update"] = [plan.arm_runs[arm][0].updates for arm in rows["arm"]]
    rows["device_seconds"] = [seconds.loc[key] for key in zip(rows["arm"], rows["update"], strict=True)]
    return rows


def _gains(axis: Axes, ends: pd.DataFrame, reported: list[float], looks: dict[str, Look]) -> None:
    """Draw differences at the heights of their arms, writing those beyond the axis as text at its edge."""
    zero(axis, vertical=True)
    near = ends[ends["difference"].abs() <= _NEAR]
    for row in near.itertuples():
        colour, marker = looks[row.arm]["color"], looks[row.arm]["marker"]
        own = ends[ends["arm"] == row.arm]
        intervals(axis, own["height"], own, "difference", colour, False, "difference_", marker=marker, markersize=4.5)
    spans = near[["difference", *(f"difference_{end}" for end in ENDS)]].to_numpy().ravel()
    shown = np.clip([0.0, *spans[np.isfinite(spans)], *reported], -_NEAR, _NEAR)
    low, high = shown.min(), shown.max()
    margin = 0.08 * ((high - low) or _NEAR)
    axis.set_xlim(low - margin, high + margin)
    for row in ends[ends["difference"].abs() > _NEAR].itertuples():
        less = row.difference < 0
        text = f"◂ {row.difference:.2f}" if less else f"{row.difference:+.2f} ▸"
        axis.text(
            0.0 if less else 1.0, row.height, text.replace("-", "−"), transform=axis.get_yaxis_transform(), fontsize=8,
            va="center", ha="left" if less else "right", color=looks[row.arm]["color"],
        )  # fmt: skip
    categories(axis, list(ends["label"]))
    axis.tick_params(axis="y", length=0)


def _curves(plan: Plan, losses: pd.DataFrame, costs: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """Return the last iterate's loss averaged over seeds, at the arm's k, with the device time of each milestone.

    The last row of an arm has `difference`, SOMA's loss minus the arm's, and the ends of its intervals.
    """
    seconds = seconds_of_arms(costs, "aggregate device time")
    gains = differences[(differences["set"] == "test") & (differences["iterate"] == "last")].set_index("other")
    gains = gains[["difference", *ENDS]].rename(columns={end: f"difference_{end}" for end in ENDS})
    frames = []
    for name in plan.config.products.fixed_size.arms:
        arm = plan.config.arms[name]
        rows = losses[
            (losses["set"] == "test")
            & (losses["arm"] == name)
            & losses["seed"].isna()
            & (losses["iterate"] == "last")
            & (losses["k"] == arm.active)
        ].sort_values("update")
        frame = rows[["arm", "update", "operations", "loss", *ENDS, "seeds", "run"]].reset_index(drop=True)
        frame.insert(1, "label", arm_label(arm))
        frame["device_seconds"] = [seconds.loc[(name, u)] for u in frame["update"]]
        frames.append(frame.join(gains.reindex([name]).set_axis(frame.index[-1:])))
    return pd.concat(frames, ignore_index=True)
