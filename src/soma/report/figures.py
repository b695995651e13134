"""Figure 1, and the precision of the finite difference. Rows come from analysis; nothing is computed here."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from soma.plan import Plan
from soma.report.style import COLOURS, MUTED, log_axis, save, style
from soma.report.tables import arm_label


def figure1(plan: Plan, losses: pd.DataFrame, costs: pd.DataFrame, directory: Path) -> None:
    """Test loss against arithmetic operations, and against aggregate device time, for arms of equal total size."""
    drawn = _curves(plan, losses, costs)
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.7), sharey=True, layout="constrained")
        panels = (("operations", "arithmetic operations"), ("device_seconds", "aggregate device time (s)"))
        for axis, (x, label) in zip(axes, panels, strict=True):
            for i, (_, curve) in enumerate(drawn.groupby("arm", sort=False)):
                colour = COLOURS[i % len(COLOURS)]
                axis.plot(curve[x], curve["loss"], color=colour, marker="o", markersize=3.5)
                axis.fill_between(curve[x], curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0)
            log_axis(axis)
            axis.set_xlabel(label)
        axes[0].set_ylabel("test loss (nats per byte)")
        axes[0].set_title("Equal total size: test loss against operations")
        axes[1].set_title("… and against device time on this machine")
        _label_ends(axes[1], drawn)
        save(figure, drawn, plan, directory, "figure1")


def precision(plan: Plan, rows: pd.DataFrame, directory: Path) -> None:
    """Relative error of a loss difference against eps, at initial and at trained weights."""
    order = rows.groupby("precision")["error"].mean().sort_values(ascending=False).index
    colours = dict(zip(order, COLOURS, strict=False))
    with style():
        figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.7), sharey=True, layout="constrained")
        for axis, (name, group) in zip(axes, rows.groupby("weights", sort=False), strict=True):
            for label, line in group.sort_values("eps").groupby("precision"):
                axis.plot(line["eps"], line["error"], color=colours[label], marker="o", markersize=3.5)
            axis.axhline(1.0, color=MUTED, linewidth=0.8, linestyle="--")
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.invert_xaxis()
            axis.set_xlabel("eps")
            axis.set_title(f"At {name} weights")
        axes[0].set_ylabel("error of L(θ+εz) − L(θ−εz), relative")
        axes[0].annotate("no signal left", (rows["eps"].max(), 1.0), color=MUTED, fontsize=7, va="bottom")
        last = rows[(rows["weights"] == rows["weights"].iloc[-1]) & (rows["eps"] == rows["eps"].min())]
        _label_lines(axes[1], [(r.precision, r.eps, r.error, colours[r.precision]) for r in last.itertuples()])
        save(figure, rows, plan, directory, "precision")


def _curves(plan: Plan, losses: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of the last iterate with the arm's k, with the device time of the same milestone."""
    seconds = costs[costs["quantity"] == "aggregate device time"].groupby(["arm", "update"])["value"].mean()
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
        frame = rows[["arm", "update", "operations", "loss", "low", "high", "seeds", "run"]].copy()
        frame.insert(1, "label", arm_label(arm))
        frame["device_seconds"] = [seconds.loc[(name, u)] for u in frame["update"]]
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _label_ends(axis: Axes, drawn: pd.DataFrame) -> None:
    """Name every curve at its end."""
    ends = drawn.groupby("arm", sort=False).tail(1).reset_index(drop=True)
    _label_lines(
        axis, [(r.label, r.device_seconds, r.loss, COLOURS[r.Index % len(COLOURS)]) for r in ends.itertuples()]
    )


def _label_lines(axis: Axes, ends: list[tuple[str, float, float, str]]) -> None:
    """Write (label, x, y, colour) beside the axis, moved apart where labels would overlap."""
    position, place = float("-inf"), axis.transAxes.inverted()
    for label, x, y, colour in sorted(ends, key=lambda end: end[2]):
        position = max(place.transform(axis.transData.transform((x, y)))[1], position + 0.055)
        axis.annotate(
            label, xy=(x, y), xytext=(1.03, position), textcoords="axes fraction", color=colour, fontsize=8,
            va="center", annotation_clip=False, arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.5},
        )  # fmt: skip
