"""Longer state: carried over windows, and over a synthetic distance."""

from __future__ import annotations

import numpy as np
import pandas as pd

from soma.plan import Plan
from soma.report.colours import COLOURS, MUTED, arm_looks
from soma.report.draw import INTERVALS, intervals, zero
from soma.report.labels import arm_label
from soma.report.paper import PaperValues
from soma.report.place import Label
from soma.report.style import Drawing, log_axis, panels


def horizon(plan: Plan, paper: PaperValues, carried: pd.DataFrame, recalled: pd.DataFrame) -> Drawing:
    """Draw what carried state changes (left), and the loss of the answer at every distance (right)."""
    looks, own = arm_looks(plan), carried[carried["difference"].notna()]
    note = (
        f"Left: loss with state carried over several windows minus that of the fewest; below zero carrying helps. "
        f"{INTERVALS} Right: loss of the answer by distance, mean and 95 % interval over seeds, of a cell of "
        f"{recalled['parameters'].max():,.0f} parameters, none of the campaign's; the dashed line is chance, log 2."
    )
    figure, axes = panels(2, note, size=(9.6, 4.0))
    left, right = axes[0]
    ends, labels = list[Label](), list[Label]()
    for i, (arm, rows) in enumerate(own.groupby("arm", sort=False)):
        look, at = looks[str(arm)], rows["carried"] * 1.03**i  # side by side
        left.plot(at, rows["difference"], color=look["color"], linewidth=1)
        intervals(left, at, rows, "difference", look["color"], marker=look["marker"])
        label = arm_label(plan.arms[str(arm)])
        ends.append(Label(label, float(at.iloc[-1]), float(rows["difference"].iloc[-1]), look["color"]))
    zero(left)
    log_axis(left, base=2)
    left.set_xticks(sorted(own["carried"].unique()))
    left.margins(0.15, 0.1)
    left.set_xlabel("windows over which state is carried")
    left.set_ylabel("difference of validation loss\n(nats per byte)")
    for (method, rows), colour in zip(recalled.groupby("method", sort=False), COLOURS, strict=False):
        right.plot(rows["distance"], rows["loss"], color=colour, marker="o", markersize=4)
        low, high = (rows["chance"] + rows[end] for end in ("seed_low", "seed_high"))
        known = np.isfinite(low)
        right.vlines(rows["distance"][known], low[known], high[known], color=colour, linewidth=1.1)
        labels.append(Label(str(method).upper(), rows["distance"].iloc[-1], rows["loss"].iloc[-1], colour))
    right.axhline(recalled["chance"].iloc[0], color=MUTED, linewidth=0.8, linestyle="--", zorder=1)
    log_axis(right)
    right.set_xticks(sorted(recalled["distance"].unique()))
    right.set_xlabel("bytes from the event to what it decides")
    right.set_ylabel("loss of the answer (nats)")
    columns = ["panel", "arm", "carried", "difference", "method", "distance", "loss", "low", "high", "seed_low"]
    columns += ["seed_high", "seeds", "run"]
    data = pd.concat([own.assign(panel="carried"), recalled.assign(panel="recalled")], ignore_index=True)
    return Drawing(figure, data[columns], beside=[(left, ends), (right, labels)])
