"""Controls that the paper did not run: the size curve (B7), and the precision of differences (B6)."""

from __future__ import annotations

import pandas as pd

from soma.plan import Plan
from soma.report.colours import COLOURS, MUTED, arm_looks
from soma.report.draw import (
    ENDS,
    TEST,
)
from soma.report.labels import arm_label
from soma.report.paper import PaperValues
from soma.report.place import Label
from soma.report.style import Drawing, log_axis, panels
from soma.report.table import seed_counts, span


def sizes(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw test loss against total parameters at equal operations: monoliths as a curve, other arms as points."""
    columns = ["kind", "arm", "iterate", "parameters", "operations", "width", "loss", *ENDS, "seeds", "run"]
    drawn = rows[columns].assign(label=[arm_label(plan.arms[arm]) for arm in rows["arm"]])
    monoliths, looks = plan.config.products.controls.sizes, arm_looks(plan)
    others = [arm for arm in drawn["arm"].unique() if arm not in monoliths]
    equal = drawn[~drawn["arm"].isin(monoliths)].drop_duplicates("arm")
    note = (
        "Filled and solid: last iterate; hollow and dashed: averaged. Bars: 95 % over seeds, if there are two or more "
        f"({seed_counts(drawn['seeds'])}); intervals over documents are in the table. Every arm is drawn at its own "
        f"number of parameters; the coloured ones have {span(equal['parameters'])}, width {span(equal['width'])}: they "
        "differ because widths are whole numbers and experts have heads of their own or share one."
    )
    largest = drawn.loc[drawn["parameters"].where(drawn["arm"].isin(monoliths)).idxmax(), "arm"]
    labels, widths = [], []
    figure, axes = panels(1, note, size=(7.6, 4.5))
    axis = axes[0, 0]
    for iterate, line in (("last", "-"), ("average", "--")):
        own = drawn[(drawn["iterate"] == iterate) & drawn["arm"].isin(monoliths)].sort_values("parameters")
        axis.plot(own["parameters"], own["loss"], linestyle=line, color="black", linewidth=1.2)
    for arm, points in drawn.groupby("arm", sort=False):
        look, last = looks[arm], points[points["iterate"] == "last"]
        averaged = points[points["iterate"] == "average"]
        axis.plot(averaged["parameters"], averaged["loss"], markersize=5, markerfacecolor="white", **look)
        bars = last[last["seed_low"].notna()]
        axis.vlines(bars["parameters"], bars["seed_low"], bars["seed_high"], color=look["color"], linewidth=1.1)
        axis.plot(last["parameters"], last["loss"], markersize=5, markeredgecolor="white", **look)
        end = last.iloc[0]
        if arm in others or arm == largest:
            text = end["label"] if arm in others else f"{end['label']}\nwidth {end['width']}"
            labels.append(Label(text, end["parameters"], end["loss"], look["color"]))
        else:
            widths.append(Label(f"width {end['width']}", end["parameters"], end["loss"], MUTED))
    log_axis(axis)
    axis.set_xlabel("parameters in all")
    axis.set_ylabel(TEST)
    return Drawing(figure, drawn, [(axis, labels)], [(axis, widths)])


def precision(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw the relative error of a loss difference against eps, at initial and at trained weights."""
    order = rows.groupby("precision")["error"].mean().sort_values(ascending=False).index
    colours = dict(zip(order, COLOURS, strict=False))
    note = "Root mean square over directions, relative to the difference in FP64; ε falls to the right."
    figure, axes = panels(rows["weights"].nunique(), note, sharey=True)
    for axis, (name, group) in zip(axes[0], rows.groupby("weights", sort=False), strict=True):
        for label, line in group.sort_values("eps").groupby("precision"):
            axis.plot(line["eps"], line["error"], color=colours[label], marker="o", markersize=3.5)
        axis.axhline(1.0, color=MUTED, linewidth=0.8, linestyle="--")
        log_axis(axis)
        log_axis(axis, "y")
        axis.invert_xaxis()
        axis.set_xlabel("ε")
        axis.set_title(f"At {name} weights")
    axes[0, 0].set_ylabel("relative error")
    last = rows[(rows["weights"] == rows["weights"].iloc[-1]) & (rows["eps"] == rows["eps"].min())]
    ends = [Label(r.precision, r.eps, r.error, colours[r.precision]) for r in last.itertuples()]
    ends.append(Label("no signal left", rows["eps"].min(), 1.0, MUTED))
    return Drawing(figure, rows, beside=[(axes[0, -1], ends)])
