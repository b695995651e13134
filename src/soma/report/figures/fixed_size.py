"""Equal total size: Figure 1."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from soma.analysis.costs import seconds_of_arms
from soma.plan import Plan
from soma.report.colours import Look, arm_looks
from soma.report.draw import (
    CURVES,
    ENDS,
    INTERVALS,
    TEST,
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
"""Nats per byte; arms that end further from the best, or from SOMA, are labelled at the edge of Figure 1's panels."""


def figure1(
    plan: Plan, paper: PaperValues, losses: pd.DataFrame, costs: pd.DataFrame, differences: pd.DataFrame
) -> Drawing:
    """Draw test loss against operations and device time at equal total size, and SOMA's loss minus each arm's."""
    drawn, looks, theirs = _curves(plan, losses, costs, differences), arm_looks(plan), overlay.fixed_size(plan, paper)
    note = f"{CURVES} Right: SOMA's loss minus that of the arm in whose row it stands, both at the end of their "
    note += f"budgets and paired by document and seed. {INTERVALS} "
    note += "Crosses, left and right: the paper's, by its updates; N=8's by the mean of its experts." if theirs else (
        "The paper's points are not drawn: they are of 8.4 million parameters on other text."
    )  # fmt: skip
    ends = drawn.drop_duplicates("arm", keep="last").sort_values("loss")
    ends["height"] = (np.arange(len(ends)) + 0.5) / len(ends)
    bottom, top = _limits(drawn, ends, [float(point["loss"]) for point in theirs])
    figure, axes = panels(3, note, size=(10.4, 4.3), gridspec_kw={"width_ratios": [1, 1, 0.62]})
    left, middle, right = axes[0]
    middle.sharey(left)
    middle.tick_params(labelleft=False)
    crosses(left, theirs, "operations", "loss", looks)
    for axis, x, name in ((left, "operations", "arithmetic operations"),
                          (middle, "device_seconds", "aggregate device time (s)")):  # fmt: skip
        for arm, points in drawn.groupby("arm", sort=False):
            curve(axis, points, x, looks[arm])
        log_axis(axis)
        axis.set_xlabel(name)
    left.set_ylim(bottom, top)
    left.set_ylabel(TEST)
    heights = ends.set_index("arm")["height"]
    gains = [point | {"height": heights[point["arm"]]} for point in theirs if "difference" in point]
    crosses(right, gains, "difference", "height", looks)
    _gains(right, ends, [point["difference"] for point in gains], looks)
    experts = plan.arms[plan.config.products.fixed_size.soma].experts
    right.set_xlabel(f"SOMA N={experts} minus this arm\n(nats per byte)")
    right.set_title("Negative: SOMA is better")
    labels = [
        Label(
            r.label if r.loss <= top else f"{r.label}: above, ends at {r.loss:.2f}",
            r.device_seconds, r.loss, looks[r.arm]["color"], r.height,
        )
        for r in ends.itertuples()
    ]  # fmt: skip
    return Drawing(figure, with_paper(drawn, theirs), beside=[(middle, labels)])


def _limits(drawn: pd.DataFrame, ends: pd.DataFrame, reported: list[float]) -> tuple[float, float]:
    """Return loss limits that contain the curves of arms ending near the best, and the paper's points."""
    best = ends["loss"].min()
    near = ends[ends["loss"] <= best + _NEAR]
    shown = drawn[drawn["arm"].isin(near["arm"])]
    # The interval over two seeds can be wider than everything else together.
    bottom = max(near["seed_low"].min(), best - _NEAR), shown["low"].min(), *reported
    top = min(near["seed_high"].max(), near["loss"].max() + _NEAR), shown["high"].max(), *reported
    low, high = float(np.nanmin(bottom)), float(np.nanmax(top))
    return low - 0.04 * (high - low), high + 0.04 * (high - low)


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
            0.0 if less else 1.0, row.height, text.replace("-", "−"), transform=axis.transAxes, fontsize=8, va="center",
            ha="left" if less else "right", color=looks[row.arm]["color"],
        )  # fmt: skip
    axis.set_ylim(0, 1)
    axis.set_yticks(ends["height"], [""] * len(ends))
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
