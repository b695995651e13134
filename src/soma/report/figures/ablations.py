"""Ablations under backpropagation: Figure 9."""

from __future__ import annotations

import pandas as pd

from soma.plan import Plan
from soma.report.colours import arm_looks
from soma.report.draw import ELSEWHERE
from soma.report.labels import arm_label
from soma.report.paper import PaperValues
from soma.report.place import Label
from soma.report.style import Drawing, log_axis, panels
from soma.report.table import seed_counts

_TITLES = {"partition": "Partition", "start": "Start", "head": "Head"}


def figure9(plan: Plan, paper: PaperValues, rows: pd.DataFrame) -> Drawing:
    """Draw the expert validation loss of the base and of every ablation against training steps, in three panels."""
    base = plan.config.products.ablation.base
    keys = ["group", "arm", "update"]
    over_seeds = rows.groupby(keys, sort=False)
    drawn = over_seeds["loss"].agg(["mean", "sem", "count"]).reset_index()
    drawn = drawn.rename(columns={"mean": "loss", "sem": "standard_error", "count": "seeds"})
    drawn["run"] = over_seeds["run"].agg(" ".join).to_numpy()
    shown = plan.arm_runs[base][0]
    note = (
        f"Mean over seeds ({seed_counts(drawn['seeds'])}); bands: ± one standard error over seeds, if n > 1. "
        f"N = {shown.experts}, width {shown.settings.width}, B = {shown.settings.batch}. Every expert is validated on "
        "its own shard, so the left panel compares losses on different text; the paper draws ensemble validation. "
        f"Base: semantic clusters, start from the seed run, tied head trained in full. {ELSEWHERE}"
    )
    figure, axes = panels(len(_TITLES), note, size=(9.4, 4.2))
    labels, looks = [], arm_looks(plan)
    for axis, (group, title) in zip(axes[0], _TITLES.items(), strict=True):
        arms = [base, *drawn.loc[drawn["group"] == group, "arm"].unique()]
        ends = []
        for arm in arms:
            colour = looks[arm]["color"]
            own = drawn[drawn["arm"] == arm].sort_values("update")
            axis.plot(own["update"], own["loss"], color=colour)
            if own["standard_error"].notna().all():
                low, high = own["loss"] - own["standard_error"], own["loss"] + own["standard_error"]
                axis.fill_between(own["update"], low, high, color=colour, alpha=0.15, linewidth=0)
            name = "base" if arm == base else arm_label(plan.arms[arm])
            middle = own.iloc[len(own) // 2]
            ends.append(Label(name, middle["update"], middle["loss"], colour))
        log_axis(axis)
        axis.set_xlabel("training steps")
        axis.set_title(title)
        labels.append((axis, ends))
    axes[0, 0].set_ylabel("expert validation loss\n(nats per byte)")
    return Drawing(figure, drawn, near=labels)
