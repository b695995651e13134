"""The frontier: which model is best under a budget of operations. Not in the paper."""

from __future__ import annotations

import numpy as np
import pandas as pd

from soma.analysis.frontier import lowest_point
from soma.plan import Plan
from soma.report.colours import MUTED, count_looks, ramp
from soma.report.draw import ENDS, TEST
from soma.report.paper import PaperValues
from soma.report.place import Label
from soma.report.style import Drawing, log_axis, panels
from soma.report.table import significant


def frontier(plan: Plan, paper: PaperValues, rows: pd.DataFrame, fits: pd.DataFrame) -> Drawing:
    """Draw test loss against parameters at every budget, and the lowest loss of each kind against operations."""
    product, counts = plan.config.products.frontier, count_looks(plan)
    test = rows[rows["set"] == "test"]
    columns = ["kind", "arm", "experts", "width", "parameters", "operations", "loss", *ENDS, "chosen", "seeds", "run"]
    drawn = test[columns]
    note = (
        "Left: points are means of seeds; lines join single models at one budget, a cross is the lowest point of their "
        "parabola. Right: filled, single models (at the lowest point of the parabola); hollow, the ensemble that "
        "validation chose; bars: 95 % over seeds and documents; dashed: power laws fitted to the budgets, extrapolated "
        f"to {significant(product.larger)} operations; stars: runs made afterwards."
    )
    figure, axes = panels(2, note, size=(8.6, 4.4), sharey=True)
    left, right = axes[0]
    shades = ramp(product.budgets, ("Blues_r", 0.0, 0.55))
    by_budget = []
    sizes = np.log([plan.arm_runs[arm][0].parameters for arm in product.monoliths])
    for budget in product.budgets:
        own, colour = drawn[drawn["operations"] == budget], shades[budget]["color"]
        single = own[own["kind"] == "monolith"].sort_values("parameters")
        several = own[own["kind"] == "ensemble"]
        left.plot(single["parameters"], single["loss"], "o-", color=colour, markersize=3.5, linewidth=1.1)
        left.plot(several["parameters"], several["loss"], "o", color=colour, markersize=4, markerfacecolor="white")
        in_order = single.set_index("arm").loc[list(product.monoliths)]["loss"].to_numpy()
        place, value, *_ = lowest_point(sizes, in_order)
        left.plot(np.exp(place), value, "x", color=colour, markersize=6)
        end = single.iloc[-1]
        by_budget.append(Label(significant(budget), end["parameters"], end["loss"], colour))
    lines = []
    for kind, fill, colour in (("monolith", "black", "black"), ("ensemble", "white", counts[_most(plan)]["color"])):
        own = fits[(fits["part"] == "lowest loss") & (fits["kind"] == kind)].sort_values("operations")
        known, ahead = own[~own["extrapolated"]], own[own["extrapolated"]].iloc[0]
        right.vlines(known["operations"], known["low"], known["high"], color=colour, linewidth=1.1)
        right.plot(known["operations"], known["value"], "o-", color=colour, markersize=5, markerfacecolor=fill)
        exponent = fits[(fits["part"] == "loss exponent") & (fits["kind"] == kind)]["value"].iloc[0]
        spent = np.geomspace(product.budgets[0], product.larger, 20)
        law = ahead["value"] * (spent / product.larger) ** exponent
        right.plot(spent, law, "--", color=MUTED, linewidth=0.9)
        right.vlines(ahead["operations"], ahead["low"], ahead["high"], color=MUTED, linewidth=1.1)
        outcome = drawn[(drawn["operations"] == product.larger) & (drawn["kind"] == kind)]
        right.plot(outcome["operations"], outcome["loss"], "*", color=colour, markersize=9)
        words = "single models" if kind == "monolith" else "ensembles"
        lines.append(Label(words, ahead["operations"], ahead["value"], colour))
    for axis, name in ((left, "parameters in all"), (right, "arithmetic operations")):
        log_axis(axis)
        axis.set_xlabel(name)
    left.set_ylabel(TEST)
    left.set_title("By size, for each budget of operations")
    right.set_title("Lowest loss of each kind")
    return Drawing(figure, drawn, [(left, by_budget), (right, lines)])


def _most(plan: Plan) -> int:
    """Return the largest N of the ensembles, whose colour stands for all of them."""
    return max(plan.arms[arm].experts for arm in plan.config.products.frontier.ensembles)
