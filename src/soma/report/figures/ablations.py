"""Ablations under backpropagation: Figure 9."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from soma.plan import Plan
from soma.report.colours import COLOURS
from soma.report.draw import (
    ENDS,
    INTERVALS,
    categories,
    crosses,
    intervals,
    with_paper,
    zero,
)
from soma.report.labels import arm_label
from soma.report.paper import PaperValues
from soma.report.place import wrapped
from soma.report.style import Drawing, panels

_LINEAR = 0.01
"""Largest difference (nats per byte) on the linear part of Figure 9's axis, which is logarithmic beyond."""


def figure9(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
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
    base = "the base has semantic clusters, starts from the seed run and trains its tied head in full"
    note = f"Left of zero the base is better; {base}. {INTERVALS}" + (" Cross: the paper's." if theirs else "")
    note += f" The axis is linear up to ±{_LINEAR} and logarithmic beyond."
    groups = list(dict.fromkeys(own["group"]))
    figure, axes = panels(1, note, size=(7.6, 1.6 + 0.42 * max(1, len(own))))
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
    return Drawing(figure, with_paper(drawn, theirs))
