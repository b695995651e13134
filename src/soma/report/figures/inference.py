"""Trained ensembles in use: throughput (Figures 6 and 15), active experts (16) and pairs of experts (17)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from soma.analysis.costs import device_seconds
from soma.analysis.inference import throughput
from soma.plan import Plan
from soma.report.colours import COLOURS, MUTED, arm_looks
from soma.report.draw import (
    CURVES,
    ENDS,
    INTERVALS,
    TEST,
    VALIDATION,
    Point,
    crosses,
    curve,
    intervals,
    nothing,
    with_paper,
)
from soma.report.figures import overlay
from soma.report.labels import arm_label
from soma.report.paper import PaperValues
from soma.report.place import Label
from soma.report.style import Drawing, log_axis, panels
from soma.report.table import significant


def figure6(plan: Plan, paper: PaperValues, serving: pd.DataFrame, inference: pd.DataFrame) -> Drawing:
    """Draw test loss against inference throughput."""
    drawn, theirs = _served(plan, serving, inference), overlay.served(plan, paper)
    note = overlay.note(theirs, ", on an A40")
    return _scatter(plan, drawn, theirs, ("bytes_per_second", "scored bytes per second"), drawn["label"], note)


def figure15(
    plan: Plan, paper: PaperValues, serving: pd.DataFrame, inference: pd.DataFrame, costs: pd.DataFrame
) -> Drawing:
    """Draw test loss against aggregate training device time, labelled with throughput."""
    drawn, theirs = _served(plan, serving, inference), overlay.served(plan, paper)
    spent = device_seconds(costs)
    drawn["device_seconds"] = [spent.loc[(arm, plan.arm_runs[arm][0].updates)] for arm in drawn["arm"]]
    speeds = [f"{label}\n{significant(speed / 1e6)} MB/s" for label, speed in
              zip(drawn["label"], drawn["bytes_per_second"], strict=True)]  # fmt: skip
    note = overlay.note(theirs, ", trained on RTX 5090")
    x = ("device_seconds", "aggregate device time of training (s)")
    return _scatter(plan, drawn, theirs, x, pd.Series(speeds), note)


def _served(plan: Plan, serving: pd.DataFrame, inference: pd.DataFrame) -> pd.DataFrame:
    """Return the loss of every arm with the mean throughput of its runs."""
    ends = [f"loss_{end}" for end in ENDS]
    drawn = serving[["arm", "loss", *ends, "seeds", "run"]].reset_index(drop=True)
    drawn.insert(1, "label", [arm_label(plan.arms[arm]) for arm in drawn["arm"]])
    drawn["bytes_per_second"] = [throughput(plan, inference, arm) for arm in drawn["arm"]]
    return drawn


def _scatter(
    plan: Plan, drawn: pd.DataFrame, theirs: Sequence[Point], x: tuple[str, str], texts: pd.Series, note: str
) -> Drawing:
    """Draw loss over a column, given with its axis label, with a text at every point."""
    looks, labels = arm_looks(plan), []
    note = f"{INTERVALS} Throughput and time: mean over runs. {note}"
    figure, axes = panels(1, note, size=(7.6, 4.4))
    axis = axes[0, 0]
    for i, arm in enumerate(drawn["arm"]):
        row, colour = drawn.iloc[[i]], looks[arm]["color"]
        intervals(axis, row[x[0]], row, "loss", colour, prefix="loss_", marker=looks[arm]["marker"])
        labels.append(Label(texts.iloc[i], row[x[0]].iloc[0], row["loss"].iloc[0], colour))
    crosses(axis, theirs, x[0], "loss", looks)
    axis.margins(0.42, 0.15)
    log_axis(axis)
    axis.set_xlabel(x[1])
    axis.set_ylabel(TEST)
    return Drawing(figure, with_paper(drawn, theirs), near=[(axis, labels)])


def figure16(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw loss against the number of active experts."""
    drawn = rows.assign(label=[arm_label(plan.arms[arm]) for arm in rows["arm"]])
    theirs, looks, ends = overlay.active(plan, paper), arm_looks(plan), []
    note = f"{CURVES} The dashed line is k=4, what the paper uses. {overlay.note(theirs)}"
    figure, axes = panels(1, note, size=(7.2, 4.4))
    axis = axes[0, 0]
    for arm, points in drawn.groupby("arm", sort=False):
        points = points.sort_values("k")
        curve(axis, points, "k", looks[arm])
        end = points.iloc[-1]
        ends.append(Label(end["label"], end["k"], end["loss"], looks[arm]["color"]))
    crosses(axis, theirs, "k", "loss", looks)
    axis.axvline(4, color=MUTED, linewidth=0.8, linestyle="--", zorder=1)
    log_axis(axis, base=2)
    counts = sorted(drawn["k"].unique())
    axis.set_xticks([k for k in counts if k in (3, 6, 12) or k & (k - 1) == 0])
    axis.set_xticks([k for k in counts if k <= 16], minor=True)
    axis.set_xlabel("active experts k")
    axis.set_ylabel(VALIDATION)
    return Drawing(figure, with_paper(drawn, theirs), beside=[(axis, ends)])


def figure17(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw the gain from averaging a pair of experts against the similarity of their errors."""
    pairs, together = (rows[rows["part"] == part] for part in ("pairs", "complementarity"))
    theirs = paper.tables["figure17"]["mean_gain"]
    note = f"A point for every pair of experts of a run. The paper's mean gain at N=256: {theirs}, other text."
    drawn = rows[["part", "run"]][:0]
    figure, axes = panels(1, note, size=(7.2, 4.4))
    axis, labels = axes[0, 0], list[Label]()
    if len(together):
        values = ", ".join(f"{value:.2f}".replace("-", "−") for value in together["spearman"])
        axis.set_title(f"N={int(together['experts'].iloc[0])}: Spearman {values}")
    if pairs.empty:
        nothing(axis, "no pairs were measured")
    else:
        drawn = pairs[["run", "experts", "first", "second", "gain", "correlation", "first_loss", "second_loss"]]
        p_values = dict(zip(together["run"], together["p_value"], strict=True))
        for i, (run, own) in enumerate(drawn.groupby("run", sort=False)):
            many = len(own) > 2000  # a vector file would be large
            axis.plot(own["correlation"], own["gain"], "o", markersize=4, color=COLOURS[i], rasterized=many)
            tip = own.loc[own["correlation"].idxmax()]
            words = f"{run}\np = {p_values[run]:.2g}" if run in p_values else str(run)
            labels.append(Label(words, tip["correlation"], tip["gain"], COLOURS[i]))
        axis.set_xlabel("correlation of both experts' residual losses")
        axis.set_ylabel("gain of averaging the pair\n(nats per byte)")
    return Drawing(figure, drawn, beside=[(axis, labels)])
