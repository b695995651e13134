"""Equal total size and equal operations: Figure 1, and the size curve (B7)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from soma.plan import Plan
from soma.report.draw import BANDS, curve, with_paper
from soma.report.labels import arm_label
from soma.report.paper import PaperValues
from soma.report.place import Label, beside, near
from soma.report.style import COLOURS, MUTED, PAPER, log_axis, look, panels, save, style

_NEAR = 0.3
"""Nats per byte from the best arm within which arms end that set the height of Figure 1; others would flatten them."""
_OTHERS = [colour for colour in COLOURS if colour != "#000000"]


def figure1(plan: Plan, paper: PaperValues, losses: pd.DataFrame, costs: pd.DataFrame, directory: Path) -> None:
    """Test loss against arithmetic operations, and against aggregate device time, for arms of equal total size."""
    drawn = _curves(plan, losses, costs)
    theirs = _paper_points(plan, paper)
    note = f"{BANDS} Crosses: the paper's, by its updates." if theirs else f"{BANDS} The paper's points are not drawn: "
    note += "" if theirs else "they are of 8.4 million parameters on other text."
    final = drawn.groupby("arm")["loss"].last()
    shown = drawn[drawn["arm"].map(final) <= final.min() + _NEAR]
    reported = [float(str(point["loss"])) for point in theirs]
    bottom, top = min([shown["low"].min(), *reported]), max([shown["high"].max(), *reported])
    with style():
        figure, axes = panels(plan, 2, "Equal total size: test loss against training cost", note, sharey=True)
        ends = []
        for i, (_, found) in enumerate(drawn.groupby("arm", sort=False)):
            for axis, x in zip(axes[0], ("operations", "device_seconds"), strict=True):
                curve(axis, found, x, look(i))
            end = found.iloc[-1]
            text = end["label"] if end["loss"] <= top else f"{end['label']}: above, ends at {end['loss']:.2f}"
            ends.append(Label(text, end["device_seconds"], min(end["loss"], top), str(look(i)["color"])))
        for point in theirs:
            axes[0, 0].plot(point["operations"], point["loss"], **PAPER)
        for axis, name in zip(axes[0], ("arithmetic operations", "aggregate device time (s)"), strict=True):
            log_axis(axis)
            axis.set_xlabel(name)
            axis.set_ylim(bottom - 0.04 * (top - bottom), top + 0.04 * (top - bottom))
        axes[0, 0].set_ylabel("test loss (nats per byte)")
        beside(axes[0, 1], ends)
        save(figure, with_paper(drawn, theirs), plan, directory, "figure1")


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


def _paper_points(plan: Plan, paper: PaperValues) -> list[dict[str, object]]:
    """Table 4 of the paper by operations, where the campaign has its size and text; its device time is another's."""
    if not paper.same_scale(plan):
        return []
    out: list[dict[str, object]] = []
    for name in plan.config.products.fixed_size.arms:
        row = paper.rows("table4").get(plan.config.arms[name].counterpart or "")
        if row is not None:
            operations = float(plan.arm_runs[name][0].operations(row["updates"]))
            out.append({"arm": name, "update": row["updates"], "operations": operations, "loss": row["test"]})
    return out


def sizes(plan: Plan, rows: pd.DataFrame, directory: Path) -> None:
    """Test loss against total parameters at equal operations: monoliths as a curve, other arms as points."""
    columns = ["kind", "arm", "iterate", "parameters", "operations", "width", "loss", "low", "high", "seeds", "run"]
    drawn = rows[columns].assign(label=[arm_label(plan.arms[arm]) for arm in rows["arm"]])
    monoliths = plan.config.products.controls.sizes
    note = "Bars: 95 % over documents; mean over seeds. Filled and solid: last iterate; hollow and dashed: averaged."
    labels, widths = [], []
    with style():
        figure, axes = panels(plan, 1, "Size curve: which size for one budget of operations?", note, size=(7.6, 4.4))
        axis = axes[0, 0]
        for iterate, line in (("last", "-"), ("average", "--")):
            own = drawn[(drawn["iterate"] == iterate) & drawn["arm"].isin(monoliths)].sort_values("parameters")
            axis.plot(own["parameters"], own["loss"], linestyle=line, color="black", linewidth=1.2)
        others = [arm for arm in drawn["arm"].unique() if arm not in monoliths]
        for arm, found in drawn.groupby("arm", sort=False):
            colour = "black" if arm in monoliths else _OTHERS[others.index(arm) % len(_OTHERS)]
            for row in found.itertuples():
                fill = colour if row.iterate == "last" else "white"
                axis.plot(row.parameters, row.loss, marker="o", markersize=5, color=colour, markerfacecolor=fill)
            last = found[found["iterate"] == "last"].iloc[0]
            axis.vlines(last["parameters"], last["low"], last["high"], color=colour, linewidth=1, alpha=0.4)
            if arm in monoliths:
                widths.append(Label(f"width {last['width']}", last["parameters"], last["loss"], MUTED))
            largest = arm in monoliths and last["parameters"] == drawn["parameters"][drawn["arm"].isin(monoliths)].max()
            if arm not in monoliths or largest:
                labels.append(Label(last["label"], last["parameters"], last["loss"], colour))
        log_axis(axis)
        axis.set_xlabel("parameters in all")
        axis.set_ylabel("test loss (nats per byte)")
        beside(axis, labels)
        near(axis, widths, 7)
        save(figure, drawn, plan, directory, "sizes")
