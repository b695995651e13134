"""Paired differences: independent and summed losses (Figure 4), ablations (9), and estimators (beyond the paper)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from soma.plan import Plan
from soma.report.colours import COLOURS
from soma.report.draw import (
    ENDS,
    INTERVALS,
    NORMAL,
    TEST,
    Point,
    categories,
    crosses,
    intervals,
    nothing,
    with_paper,
    zero,
)
from soma.report.labels import arm_label
from soma.report.paper import PaperValues
from soma.report.place import wrapped
from soma.report.style import log_axis, panels, save, style

_LINEAR = 0.01
"""Largest difference (nats per byte) on the linear part of Figure 9's axis, which is logarithmic beyond."""
_COMPARABLE = 2.0
"""Largest ratio of the paper's number of updates to ours, or the inverse, for drawing its points in Figure 4."""


def figure4(plan: Plan, paper: PaperValues, rows: pd.DataFrame, directory: Path) -> None:
    """Draw test loss with independent minus summed losses, by update, early and late in training."""
    drawn = rows.loc[rows["phase"].isin(["early", "late"]), ["phase", "update", "difference", *ENDS, "seeds", "run"]]
    theirs, words = list[Point](), []
    for phase, key in (("early", "paired_reductions"), ("late", "paired_differences")):
        given, updates = paper.tables["figure4"][phase], drawn.loc[drawn["phase"] == phase, "update"]
        if updates.min() / _COMPARABLE <= given["updates"] <= updates.max() * _COMPARABLE:
            theirs += [{"phase": phase, "update": given["updates"], "difference": -value} for value in given[key]]
        else:
            span = f"−{min(given[key])} to −{max(given[key])} nats per byte"
            words.append(f"{phase} {span} after {given['updates']:,} updates")
    title = "Independent against summed losses: difference in test loss at equal updates"
    note = f"Below zero independent losses are better. {INTERVALS}"
    note += " Crosses: the paper's seeds, N=4, on its own text." if theirs else ""
    note += f" The paper's, N=4, too far off to be drawn: {'; '.join(words)}." if words else ""
    titles = {"early": "From the seed run", "late": "Late: a trained ensemble continued"}
    with style():
        figure, axes = panels(2, title, note)
        for axis, (phase, name) in zip(axes[0], titles.items(), strict=True):
            own = drawn[drawn["phase"] == phase]
            if own.empty:
                nothing(axis)
                continue
            axis.plot(own["update"], own["difference"], color=COLOURS[0], linewidth=1)
            intervals(axis, own["update"], own, "difference", COLOURS[0])
            crosses(axis, [row for row in theirs if row["phase"] == phase], "update", "difference")
            zero(axis)
            log_axis(axis)
            axis.ticklabel_format(axis="y", style="plain", useOffset=False)
            axis.set_xlabel("updates")
            axis.set_title(name)
        axes[0, 0].set_ylabel("independent minus summed\n(nats per byte)")
        save(figure, with_paper(drawn, theirs), plan, directory, "figure4")


def figure9(plan: Plan, paper: PaperValues, rows: pd.DataFrame, directory: Path) -> None:
    """Draw the base's test loss minus that of every ablation."""
    own = rows[rows["group"] != "base"]
    names = [arm_label(plan.arms[arm]) for arm in own["arm"]]
    drawn = own[["group", "arm", "difference", *ENDS, "seeds", "run"]].assign(label=names)
    penalty = paper.tables["figure9"]["decoder_only_penalty"]
    theirs = [
        {"arm": arm, "row": i, "difference": -penalty}
        for i, arm in enumerate(own["arm"])
        if plan.arms[arm].head_path == "decoder"
    ]  # the only ablation whose difference the paper states
    title = "Ablations under backpropagation: test loss of the base minus that of the ablation"
    base = "the base has semantic clusters, starts from the seed run and trains its tied head in full"
    note = f"Left of zero the base is better; {base}. {INTERVALS}" + (" Cross: the paper's." if theirs else "")
    note += f" The axis is linear up to ±{_LINEAR} and logarithmic beyond."
    groups = list(dict.fromkeys(own["group"]))
    with style():
        figure, axes = panels(1, title, note, size=(7.6, 1.6 + 0.42 * max(1, len(own))))
        axis = axes[0, 0]
        for i, group in enumerate(groups):
            at = np.flatnonzero(own["group"] == group)
            intervals(axis, list(at), drawn[drawn["group"] == group], "difference", COLOURS[i], vertical=False)
        crosses(axis, theirs, "difference", "row")
        zero(axis, vertical=True)
        # A head frozen at random costs a hundred times as much as the other ablations.
        axis.margins(x=0.08)
        axis.set_xscale("symlog", linthresh=_LINEAR)
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}".replace("-", "−")))
        categories(axis, [wrapped(f"{name}\n({group})") for name, group in zip(names, own["group"], strict=True)])
        axis.set_xlabel("base minus this (nats per byte)")
        save(figure, with_paper(drawn, theirs), plan, directory, "figure9")


def estimators(plan: Plan, rows: pd.DataFrame, directory: Path) -> None:
    """Draw estimators at equal operations: loss, paired difference to the first, and relative variance."""
    loss = [f"loss_{end}" for end in ENDS]
    variance = ["relative_variance", "relative_variance_se"]
    drawn = rows[["arm", "loss", *loss, "difference", *ENDS, *variance, "forwards", "seeds", "run"]]
    drawn = drawn.assign(label=[arm_label(plan.arms[arm]) for arm in rows["arm"]])
    note = f"{INTERVALS} Relative variance: of estimates on one batch at the same weights, bars 95 % over them."
    at = np.arange(len(drawn))
    with style():
        size = (8.6, 1.7 + 0.34 * max(2, len(drawn)))
        figure, axes = panels(3, "Estimators at equal operations", note, size=size, sharey=True)
        left, middle, right = axes[0]
        intervals(left, list(at), drawn, "loss", COLOURS[0], vertical=False, prefix="loss_")
        left.set_xlabel(TEST)
        intervals(middle, list(at), drawn, "difference", COLOURS[0], vertical=False)
        zero(middle, vertical=True)
        middle.set_xlabel("first minus this (nats per byte)")
        right.errorbar(
            drawn["relative_variance"],
            at,
            xerr=NORMAL * drawn["relative_variance_se"],
            fmt="o",
            markersize=5,
            elinewidth=1.1,
            color=COLOURS[1],
        )
        log_axis(right)
        right.set_xlabel("relative variance (log scale)")
        categories(left, [wrapped(name) for name in drawn["label"]])
        for axis in (middle, right):
            axis.grid(visible=False, axis="y")
        save(figure, drawn, plan, directory, "estimators")
