"""Trained ensembles in use: throughput (Figures 6 and 15), active experts (16) and pairs of experts (17)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

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
from soma.report.style import log_axis, panels, save, style
from soma.report.table import significant


def figure6(plan: Plan, paper: PaperValues, serving: pd.DataFrame, inference: pd.DataFrame, directory: Path) -> None:
    """Draw test loss against inference throughput."""
    drawn, theirs = _served(plan, serving, inference), overlay.served(plan, paper)
    title = "Test loss against throughput of inference, routing included"
    note = overlay.note(theirs, ", on an A40")
    _scatter(
        plan, drawn, theirs, ("bytes_per_second", "scored bytes per second"), drawn["label"], title, note, directory,
        "figure6",
    )  # fmt: skip


def figure15(
    plan: Plan, paper: PaperValues, serving: pd.DataFrame, inference: pd.DataFrame, costs: pd.DataFrame,
    directory: Path,
) -> None:  # fmt: skip
    """Draw test loss against aggregate training device time, labelled with throughput."""
    drawn, theirs = _served(plan, serving, inference), overlay.served(plan, paper)
    spent = costs[costs["quantity"] == "aggregate device time"].groupby(["arm", "update"])["value"].mean()
    drawn["device_seconds"] = [spent.loc[(arm, plan.arm_runs[arm][0].updates)] for arm in drawn["arm"]]
    speeds = [f"{label}\n{significant(speed / 1e6)} MB/s" for label, speed in
              zip(drawn["label"], drawn["bytes_per_second"], strict=True)]  # fmt: skip
    title = "Test loss against training time, with the throughput of inference"
    note = overlay.note(theirs, ", trained on RTX 5090")
    x = ("device_seconds", "aggregate device time of training (s)")
    _scatter(plan, drawn, theirs, x, pd.Series(speeds), title, note, directory, "figure15")


def _served(plan: Plan, serving: pd.DataFrame, inference: pd.DataFrame) -> pd.DataFrame:
    """Return the loss of every arm with the mean throughput of its runs."""
    speed = inference.set_index("run")["scored_bytes_per_second"]
    ends = [f"loss_{end}" for end in ENDS]
    drawn = serving[["arm", "loss", *ends, "seeds", "run"]].reset_index(drop=True)
    drawn.insert(1, "label", [arm_label(plan.arms[arm]) for arm in drawn["arm"]])
    drawn["bytes_per_second"] = [speed.loc[[run.id for run in plan.arm_runs[arm]]].mean() for arm in drawn["arm"]]
    return drawn


def _scatter(
    plan: Plan, drawn: pd.DataFrame, theirs: Sequence[Point], x: tuple[str, str], texts: pd.Series, title: str,
    note: str, directory: Path, file: str,
) -> None:  # fmt: skip
    """Draw loss over a column, given with its axis label, with a text at every point."""
    looks, labels = arm_looks(plan), []
    with style():
        note = f"{INTERVALS} Throughput and time: mean over runs. {note}"
        figure, axes = panels(1, title, note, size=(7.6, 4.4))
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
        save(figure, with_paper(drawn, theirs), plan, directory, file, near=[(axis, labels)])


def figure16(plan: Plan, paper: PaperValues, rows: pd.DataFrame, directory: Path) -> None:
    """Draw loss against the number of active experts."""
    drawn = rows.assign(label=[arm_label(plan.arms[arm]) for arm in rows["arm"]])
    theirs, looks, ends = overlay.active(plan, paper), arm_looks(plan), []
    note = f"{CURVES} The dashed line is k=4, what the paper uses. {overlay.note(theirs)}"
    with style():
        figure, axes = panels(1, "How many of the nearest experts to average", note, size=(7.2, 4.4))
        axis = axes[0, 0]
        for arm, found in drawn.groupby("arm", sort=False):
            found = found.sort_values("k")
            curve(axis, found, "k", looks[arm])
            end = found.iloc[-1]
            ends.append(Label(end["label"], end["k"], end["loss"], looks[arm]["color"]))
        crosses(axis, theirs, "k", "loss", looks)
        axis.axvline(4, color=MUTED, linewidth=0.8, linestyle="--", zorder=1)
        log_axis(axis, base=2)
        counts = sorted(drawn["k"].unique())
        axis.set_xticks([k for k in counts if k in (3, 6, 12) or k & (k - 1) == 0])
        axis.set_xticks([k for k in counts if k <= 16], minor=True)
        axis.set_xlabel("active experts k")
        axis.set_ylabel(VALIDATION)
        save(figure, with_paper(drawn, theirs), plan, directory, "figure16", beside=[(axis, ends)])


def figure17(plan: Plan, paper: PaperValues, rows: pd.DataFrame, directory: Path) -> None:
    """Draw the gain from averaging a pair of experts against the similarity of their errors."""
    pairs, together = (rows[rows["part"] == part] for part in ("pairs", "complementarity"))
    theirs = paper.tables["figure17"]["mean_gain"]
    note = f"A point for every pair of experts of a run. The paper's mean gain at N=256: {theirs}, other text."
    title, drawn = "Pairs of experts", rows[["part", "run"]][:0]
    if len(together):
        found = ", ".join(f"{value:.2f}".replace("-", "−") for value in together["spearman"])
        title = f"Pairs of N={int(together['experts'].iloc[0])} experts: Spearman {found}"
    with style():
        figure, axes = panels(1, title, note, size=(7.2, 4.4))
        axis, labels = axes[0, 0], list[Label]()
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
        save(figure, drawn, plan, directory, "figure17", beside=[(axis, labels)])
