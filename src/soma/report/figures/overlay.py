"""The paper's points on the axes of figures, for campaigns with the paper's corpus and sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from soma.analysis.inference import token_operations
from soma.plan import Plan
from soma.report.draw import ELSEWHERE, Point
from soma.report.paper import PaperValues

_HOUR = 3600.0
_ACTIVE = re.compile(r"n(\d+)_k(\d+)(?:_to_k(\d+)_gain)?")
"""Keys of Figure 16: a loss at N and k, or what more experts gain."""


def note(points: Sequence[Point], words: str = "") -> str:
    """Return a figure's note about the paper's points."""
    return f"Crosses: the paper's{words}." if points else ELSEWHERE


def reported(plan: Plan, paper: PaperValues, arm: str) -> list[Point]:
    """Return the paper's test losses of an arm, Table 4's first, with `updates` and mostly `gpu_hours`."""
    if not paper.same_scale(plan):
        return []
    own = plan.arms[arm]
    method = "soma" if own.method == "spsa" and own.experts > 1 else own.method
    rows = [
        row
        for row in (*paper.tables["table4"], *paper.tables["figure1_points"])
        if (row["method"], row["n"], row.get("n_pert", own.n_pert)) == (method, own.experts, own.n_pert)
    ]
    # For N = 8, the paper gives the updates of its least and most advanced experts.
    spread = {row["n"]: int(np.mean(row["updates"])) for row in reversed(paper.tables["table13"])}
    return [{"updates": spread.get(row["n"])} | row for row in rows]


def fixed_size(plan: Plan, paper: PaperValues) -> list[Point]:
    """Return losses by operations; every arm's first point also has `difference`, SOMA's loss minus its own."""
    product, out = plan.config.products.fixed_size, list[Point]()
    ours = reported(plan, paper, product.soma)
    for arm in product.arms:
        for i, row in enumerate(reported(plan, paper, arm)):
            operations = float(plan.arm_runs[arm][0].operations(row["updates"]))
            out.append({"arm": arm, "update": row["updates"], "operations": operations, "loss": row["test"]})
            if i == 0 and arm != product.soma and ours:
                out[-1] |= {"difference": ours[0]["test"] - row["test"]}
    return out


def served(plan: Plan, paper: PaperValues) -> list[Point]:
    """Return test losses at the ends of the runs by the operations of a byte."""
    return [
        {"arm": arm, "loss": row["test"], "token_operations": token_operations(plan, arm)}
        for arm in plan.config.products.inference.arms
        for row in reported(plan, paper, arm)[:1]
    ]


def swept(plan: Plan, paper: PaperValues) -> list[Point]:
    """Return validation losses by time for N, and for n_pert at N = 8, and by operations if updates are stated."""
    if not paper.same_scale(plan):
        return []
    given, product, out = paper.tables["figure7"], plan.config.products.sweep, list[Point]()
    elapsed, equal = given["n_sweep_validation"], given["n_sweep_at_4M_updates"]
    for n in sorted(_numbers("n", equal) & {*product.experts}):
        operations = float(plan.arm_runs[f"{product.arm}-n{n}"][0].operations(equal["updates"]))
        for hours, spent, losses in (
            (elapsed["cutoff_hours"], np.nan, elapsed),
            (equal["updates"] * given["seconds_per_update"]["n"][n] / _HOUR, operations, equal),
        ):
            where = {"axis": "experts", "value": n, "loss": losses[f"n{n}"], "operations": spent}
            out.append(where | {"elapsed_seconds": hours * _HOUR, "device_seconds": n * hours * _HOUR})
    directions = given["n8_npert64_to_1024"]
    experts = plan.config.arms[product.arm].experts
    for n_pert in sorted(_numbers("npert", directions) & {*product.n_pert}):
        hours = directions["gpu_hours"][f"npert{n_pert}"]
        where = {"axis": "n_pert", "value": n_pert, "loss": directions[f"npert{n_pert}"], "operations": np.nan}
        out.append(where | {"elapsed_seconds": hours / experts * _HOUR, "device_seconds": hours * _HOUR})
    return out


def allocated(plan: Plan, paper: PaperValues) -> list[Point]:
    """Return the best allocation under three budgets of operations, at the middle of the paper's range."""
    if not paper.same_scale(plan):
        return []
    return [
        {"n_pert": n_pert, "batch": batch, "operations": row["operations"], "loss": float(np.mean(row["range"]))}
        for row in paper.tables["table10"]
        for _, n_pert, batch in [row["best"]]
    ]


def active(plan: Plan, paper: PaperValues) -> list[Point]:
    """Return validation losses with k active experts."""
    given, out = paper.tables["figure16"], list[Point]()
    if not paper.same_scale(plan):
        return out
    for arm in plan.config.products.active.arms:
        n = plan.arms[arm].experts
        for name, value in given.items():
            count, k, more = (int(number or 0) for number in _ACTIVE.findall(name)[0])
            if count == n:
                loss = given[f"n{n}_k{k}"] - value if more else value
                out.append({"arm": arm, "k": more or k, "loss": loss})
    return out


def variance(plan: Plan, paper: PaperValues) -> list[Point]:
    """Return the relative variance after 10,000 updates for N = 256, and for N = 1 from the paper's ratio."""
    given = paper.tables["figure10"]
    small, ratio = given["n256_relative_variance_10k"], given["ratio_n1_to_n256"]["updates_10k"]
    points: list[Point] = [{"experts": 256, "variance": small}, {"experts": 1, "variance": small * ratio}]
    return points if paper.same_scale(plan) else []


def _numbers(prefix: str, keys: Iterable[str]) -> set[int]:
    """Return the numbers in keys such as `n256`."""
    return {int(key.removeprefix(prefix)) for key in keys if re.fullmatch(rf"{prefix}\d+", key)}
