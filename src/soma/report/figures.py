"""Figure 1. Rows come from analysis; nothing is computed here."""

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
    """Name every curve at its right end, moved apart where ends would overlap."""
    ends = drawn.groupby("arm", sort=False).tail(1).reset_index(drop=True)
    colours = {row.Index: COLOURS[row.Index % len(COLOURS)] for row in ends.itertuples()}
    low, high = axis.get_ylim()
    gap, position = 0.055 * (high - low), float("-inf")
    right = drawn["device_seconds"].max()
    for row in ends.sort_values("loss").itertuples():
        position = max(row.loss, position + gap)
        axis.annotate(
            row.label, xy=(row.device_seconds, row.loss), xytext=(right * 1.25, position), color=colours[row.Index],
            fontsize=8, va="center", annotation_clip=False, arrowprops={"arrowstyle": "-", "color": MUTED, "lw": 0.5},
        )  # fmt: skip
