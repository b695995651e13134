"""Controls that the paper did not run, for other explanations of the comparison at equal total size.

B1: random shards. B2: a monolith of a single expert's size at the same operations. B3: averaged iterates. B4: the
nearest expert alone. B5: the cost of the seed run and the preprocessing included. B7: monoliths of other sizes; the
size curve is drawn from the losses computed here. (B6 is the precision of the finite difference.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.contrasts import Side, at_equal_cost, contrast, loss_row, scores_of
from soma.analysis.costs import by_milestone
from soma.plan import Plan


def differences(plan: Plan, rows: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Compute one row per control and comparison, on test; negative values favour SOMA (in B4, its mixture).

    Args:
        rows: per-document test losses of the arms of `fixed_size` and `controls`.
        costs: rows of `costs.run_costs`.
    """
    p = plan.config.products
    soma, monolith = p.fixed_size.soma, p.fixed_size.against[0]
    scores = scores_of(plan, rows)
    out: list[dict[str, Any]] = []

    def add(control: str, ours: str, theirs: str, row: Mapping[str, Any]) -> None:
        out.append({"control": control, "ours": ours, "theirs": theirs, **row})

    def compare(control: str, ours: Side, theirs: Side, words: tuple[str, str] = ("", "")) -> None:
        names = (f"{ours.arm}{words[0]}", f"{theirs.arm}{words[1]}")
        add(control, *names, contrast(plan, scores, ours, theirs))

    compare("B1", Side(soma), Side(p.controls.random))
    compare("B1", Side(p.controls.random), Side(monolith))
    ensembles = [arm for arm in p.fixed_size.arms if plan.arms[arm].method == "spsa" and plan.arms[arm].experts > 1]
    pairs = [(ours, theirs) for ours in ensembles for theirs in p.controls.sizes]
    same_width = [pair for pair in pairs if len({plan.arms[arm].width for arm in pair}) == 1]
    for ours, theirs in same_width:
        compare("B2", Side(ours), Side(theirs))
    for other in p.fixed_size.against:
        words = (", averaged iterate",) * 2
        compare("B3", Side(soma, iterate="average"), Side(other, iterate="average"), words)
    compare("B4", Side(soma), Side(soma, k=1), ("", ", nearest expert alone"))
    compare("B4", Side(soma, k=1), Side(monolith), (", nearest expert alone", ""))
    arms = (soma, monolith)
    charged = {
        "operations with the seed run": _operations(plan, arms),
        "device time with seed run and preprocessing": _time(plan, arms, costs),
    }
    for name, cost in charged.items():
        add("B5", f"{soma}, equal {name}", monolith, at_equal_cost(plan, scores, Side(soma), Side(monolith), cost))
    for ours, theirs in (pair for pair in pairs if pair not in same_width):
        compare("B7", Side(ours), Side(theirs))
    return pd.DataFrame(out)


def sizes(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the size curve (B7): test loss of every arm at the end of its budget, with its total parameters.

    `kind` is `monolith` for one model and `ensemble` for several; the operations are equal up to rounding.
    """
    p = plan.config.products
    scores = scores_of(plan, rows)
    arms = list(dict.fromkeys([*p.controls.sizes, *p.fixed_size.arms]))
    out = []
    for arm in arms:
        run = plan.arm_runs[arm][0]
        if run.settings.method != "spsa":
            continue
        kind = "ensemble" if run.experts > 1 else "monolith"
        sizes_ = {"kind": kind, "experts": run.experts, "n_pert": run.settings.n_pert, "width": run.settings.width}
        cost = {"parameters": run.parameters, "operations": float(run.operations(run.updates))}
        for iterate in ("last", "average"):
            out.append(sizes_ | cost | {"iterate": iterate} | loss_row(plan, scores, Side(arm, iterate=iterate)))
    return pd.DataFrame(out)


def beside_curve(plan: Plan, rows: pd.DataFrame, arm: str) -> float:
    """Compute an arm's last iterate minus the curve of the monoliths at its parameters; NaN outside the curve's range.

    The curve is linear in the logarithm of the parameters between two monoliths; up to 2 % beyond an end counts as
    the end.

    Args:
        rows: rows of `sizes`.
    """
    ends = rows[rows["iterate"] == "last"].set_index("arm")
    curve = ends.loc[list(plan.config.products.controls.sizes)].sort_values("parameters")
    sizes_, own = curve["parameters"].to_numpy(float), ends.loc[arm]
    if not sizes_[0] / 1.02 <= own["parameters"] <= sizes_[-1] * 1.02:
        return float("nan")
    return float(own["loss"] - np.interp(np.log(own["parameters"]), np.log(sizes_), curve["loss"]))


def _operations(plan: Plan, arms: Sequence[str]) -> dict[str, list[float]]:
    """Return the operations of every run at its milestones, including its seed run."""
    out = {}
    for run in (run for arm in arms for run in plan.arm_runs[arm]):
        start = plan.runs[run.start] if run.start else None
        before = start.operations(start.updates) if start else 0
        out[run.id] = [float(before + run.operations(update)) for update in run.milestones]
    return out


def _time(plan: Plan, arms: Sequence[str], costs: pd.DataFrame) -> dict[str, list[float]]:
    """Return device seconds of every run at its milestones, including its seed run and, for clusters, preprocessing."""
    values = by_milestone(costs)
    out = {}
    for run in (run for arm in arms for run in plan.arm_runs[arm]):
        extra = ["initialisation", *(["preprocessing"] if "clusters" in run.shards else [])]
        names = ["aggregate device time", *extra]
        out[run.id] = [sum(float(values.loc[(run.id, u, name)]) for name in names) for u in run.milestones]
    return out


def precisions_lost_and_kept(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Divide matrix products by what they leave of the finite difference at trained weights (B6).

    Args:
        rows: rows of the measurement `precision`.

    Returns:
        The largest eps at which the error reaches the difference itself, for each precision that ever does, and the
        error at the smallest eps for every other.
    """
    trained = rows[rows["weights"] == "trained"]
    lost = trained[trained["error"] >= 1].groupby("precision", sort=False)["eps"].max()
    kept = trained[(trained["eps"] == rows["eps"].min()) & ~trained["precision"].isin(lost.index)]
    return lost, kept.set_index("precision")["error"]
