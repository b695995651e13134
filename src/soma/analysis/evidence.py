"""Evidence of a campaign on each of the paper's claims, as differences that the claim says are negative.

Ratios enter as logarithms, predictions as the measurement's distance from them minus the allowed distance; the rule
that turns them into verdicts (analysis.verdict) uses nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.analysis.bootstrap import seed_interval
from soma.analysis.contrasts import shared_seeds
from soma.analysis.sweep import AXES
from soma.analysis.verdict import Difference, difference_of
from soma.plan import Plan

ALLOWED = 0.1
"""Largest relative distance from a prediction at which a measurement still agrees with it."""

Rows = Callable[[str], pd.DataFrame]
"""Maps the name of a measurement or summary to its rows."""


def evidence(plan: Plan, rows: Rows) -> dict[str, list[Difference]]:
    """Return the measured differences of every claim."""
    return {
        "C1": _fixed_size(plan, rows("differences"), "test"),
        "C2": _fixed_size(plan, rows("differences"), "external"),
        "C3": _tuned(plan, rows("tuning-compared")),
        "C4": _independence(rows("objective")),
        "C5": _paired(rows("paired")),
        "C6": _variance(plan, rows("variance")),
        "C7": _reference(plan, rows("reference")),
        "C8": _sweep(rows("sweep-differences")),
        "C9": _inference(plan, rows("inference"), rows("serving")),
        "C10": _active(rows("active-differences")),
        "C11": _pairs(rows("active")),
        "C12": _ablation(rows("ablation")),
        "C13": _split(rows("objective")),
        "C14": _allocation(plan, rows("allocation")),
        "C15": _per_expert(rows("sweep-differences")),
        "C16": _backpropagation(rows("backpropagation")),
    }


def _over_seeds(name: str, values: Sequence[float] | NDArray[np.float64], runs: Iterable[str], unit: str) -> Difference:
    """Build a difference without documents, whose only interval is over seeds."""
    found = np.asarray(values, dtype=np.float64)
    interval, nan = seed_interval(found), float("nan")
    ends = (interval.low, interval.high) if interval else (nan, nan)
    return Difference(name, float(found.mean()), nan, nan, *ends, len(found), " ".join(dict.fromkeys(runs)), unit)


def _fixed_size(plan: Plan, rows: pd.DataFrame, set_: str) -> list[Difference]:
    against = plan.config.products.fixed_size.against
    own = rows[(rows["set"] == set_) & (rows["iterate"] == "last") & rows["other"].isin(against)]
    splits = own["split"].nunique() > 1
    return [difference_of(r, f"SOMA minus {r.other}" + (f" ({r.split})" if splits else "")) for r in own.itertuples()]


def _tuned(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    (row,) = rows[rows["seed"].isna()].itertuples()
    ends = (-row.difference, -row.high, -row.low, -row.seed_high, -row.seed_low)  # the rows hold SPSA minus SOMA
    return [Difference("SOMA minus SPSA, equally tuned", *ends, int(row.seeds), row.run)]


def _independence(rows: pd.DataFrame) -> list[Difference]:
    ratios = rows[(rows["part"] == "variance") & (rows["quantity"] == "ratio")]
    if ratios.empty or (ratios["experts"] < 2).all():
        return []
    value, predicted, runs = ratios["measured"], ratios["predicted"], ratios["run"]
    n = int(ratios["experts"].iloc[0])
    return [
        _over_seeds(f"independent over summed variance, N={n}", -np.log(value), runs, "log ratio"),
        _over_seeds(
            f"distance of the ratio from {predicted.iloc[0]:.3f}, less {ALLOWED:.0%}",
            (value / predicted - 1).abs() - ALLOWED,
            runs,
            "relative",
        ),
    ]


def _paired(rows: pd.DataFrame) -> list[Difference]:
    ends = rows.groupby("phase", sort=False).tail(1)
    names = {"early": "independent minus summed, early", "late": "independent minus summed, late"}
    return [
        difference_of(row, names.get(row.phase, "the early difference minus the late one")) for row in ends.itertuples()
    ]


def _variance(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    p = plan.config.products.variance
    final = rows[(rows["update"] == rows.groupby("run")["update"].transform("max")) & rows["precision"].ne("fp64")]
    few, many = (by(p.arms, key=lambda arm: plan.arms[arm].experts) for by in (min, max))

    def values(arm: str, column: str, n_pert: int, seeds: Sequence[int]) -> NDArray[np.float64]:
        runs = [run.id for run in plan.arm_runs[arm] if run.seed in seeds]
        own = final[(final["n_pert"] == n_pert) & final["run"].isin(runs)]
        return own.groupby("run")[column].mean().loc[runs].to_numpy()

    out = []
    small, large = min(p.n_pert), max(p.n_pert)
    if few != many:
        seeds = shared_seeds(plan, few, many)
        ratio = np.log(values(many, "variance", small, seeds) / values(few, "variance", small, seeds))
        name = f"variance at N={plan.arms[many].experts} over N={plan.arms[few].experts}"
        runs = [run.id for arm in (few, many) for run in plan.arm_runs[arm] if run.seed in seeds]
        out.append(_over_seeds(name, ratio, runs, "log ratio"))
    if small != large:
        own = plan.arms[few].seeds
        ratio = values(few, "grouped", large, own) / values(few, "grouped", small, own)
        runs = [run.id for run in plan.arm_runs[few]]
        name = f"distance of n_pert={large} over n_pert={small} from {small}/{large}, less {ALLOWED:.0%}"
        out.append(_over_seeds(name, np.abs(ratio * large / small - 1) - ALLOWED, runs, "relative"))
    return out


def _reference(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    p = plan.config.products.reference
    final = rows[rows["update"] == rows.groupby("run")["update"].transform("max")].copy()
    final["product"] = final["error"] * final["aggregate_seconds"]
    few, many = (by(p.arms, key=lambda arm: plan.arms[arm].experts) for by in (min, max))
    base = p.settings[0]

    def logs(arm: str, setting: tuple[int, int], column: str, seeds: Sequence[int]) -> NDArray[np.float64]:
        runs = [run.id for run in plan.arm_runs[arm] if run.seed in seeds]
        own = final[(final["n_pert"] == setting[0]) & (final["batch"] == setting[1])].set_index("run")
        return np.log(own.loc[runs, column].to_numpy())

    out = []
    if few != many:
        seeds = shared_seeds(plan, few, many)
        runs = [run.id for arm in (few, many) for run in plan.arm_runs[arm] if run.seed in seeds]
        ratio = logs(many, base, "product", seeds) - logs(few, base, "product", seeds)
        name = f"error times device seconds, N={plan.arms[many].experts} over N={plan.arms[few].experts}"
        out.append(_over_seeds(name, ratio, runs, "log ratio"))
    directions = [s for s in p.settings if s[1] == base[1]]
    sequences = [s for s in p.settings if s[0] == base[0]]
    every, runs = plan.arms[few].seeds, [run.id for run in plan.arm_runs[few]]
    most_directions, most_sequences = max(directions), max(sequences, key=lambda s: s[1])
    if most_directions != base:
        ratio = logs(few, most_directions, "error", every) - logs(few, base, "error", every)
        out.append(_over_seeds(f"error at n_pert={most_directions[0]} over {base[0]}", ratio, runs, "log ratio"))
    if most_directions != base and most_sequences != base:
        ratio = logs(few, most_directions, "error", every) - logs(few, most_sequences, "error", every)
        name = f"error at n_pert={most_directions[0]} over that at B={most_sequences[1]}"
        out.append(_over_seeds(name, ratio, runs, "log ratio"))
    return out


def _sweep(rows: pd.DataFrame) -> list[Difference]:
    out = [
        difference_of(row, f"{AXES[row.axis]}={row.larger} minus {row.smaller}, equal updates")
        for row in rows[rows["axis"].isin(list(AXES))].itertuples()
    ]
    for row in rows[(rows["axis"] == "aggregate") & (rows["seeds"] > 0)].itertuples():
        out.append(difference_of(row, f"N={row.smaller} minus N={row.larger}, equal small total"))
    return out


def _per_expert(rows: pd.DataFrame) -> list[Difference]:
    own = rows[rows["axis"] == "per expert"]
    return [difference_of(r, f"N={r.larger} minus N={r.smaller}, equal work per expert") for r in own.itertuples()]


def _inference(plan: Plan, rows: pd.DataFrame, serving: pd.DataFrame) -> list[Difference]:
    p = plan.config.products.inference
    speed = rows.set_index("run")["scored_bytes_per_second"]
    many, few = (plan.arm_runs[arm] for arm in (p.many, p.few))
    pairs = [(a.id, b.id) for a in many for b in few if a.seed == b.seed]
    names = (f"N={many[0].experts}", f"N={few[0].experts}")
    ratio = [float(np.log(speed.loc[b] / speed.loc[a])) for a, b in pairs]
    runs = [run for pair in pairs for run in pair]
    out = [_over_seeds(f"throughput of {names[1]} over {names[0]}", ratio, runs, "log ratio")] if pairs else []
    compared = serving[serving["difference"].notna()]
    return out + [difference_of(row, f"test loss of {names[0]} minus {names[1]}") for row in compared.itertuples()]


def _active(rows: pd.DataFrame) -> list[Difference]:
    return [difference_of(row, f"N={row.experts}: k={row.k} minus {row.against}") for row in rows.itertuples()]


def _pairs(rows: pd.DataFrame) -> list[Difference]:
    own = rows[rows["part"] == "complementarity"]
    if own.empty:
        return []
    name = f"correlation of similarity and gain over pairs, N={int(own['experts'].iloc[0])}"
    return [_over_seeds(name, own["spearman"], own["run"], "rank correlation")]


def _ablation(rows: pd.DataFrame) -> list[Difference]:
    return [difference_of(row, f"base minus {row.arm}") for row in rows[rows["group"] != "base"].itertuples()]


def _split(rows: pd.DataFrame) -> list[Difference]:
    own = rows[rows["part"] == "split"].drop_duplicates(["run", "group"])
    out = []
    for group, found in own.groupby("group"):
        distance = np.abs(np.log2(found["best_measured"] / found["best_predicted"])) - 1
        predicted = found["best_predicted"].mean()
        name = f"{int(group)} summed: distance of the best B from {predicted:.2f}, less a factor of 2"
        out.append(_over_seeds(name, distance, found["run"], "octaves"))
    return out


def _allocation(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    margin = plan.config.products.allocation.margin
    out = []
    for row in rows[rows["difference"].notna()].itertuples():
        name = f"distance of {rows['arm'].iloc[0]} and {row.arm}, less {margin:g}"
        (low, high), (seed_low, seed_high) = (_distance(row, prefix, margin) for prefix in ("", "seed_"))
        mean = abs(row.difference) - margin
        out.append(Difference(name, mean, low, high, seed_low, seed_high, int(row.seeds), row.run))
    return out


def _distance(row: Any, prefix: str, margin: float) -> tuple[float, float]:
    """Compute the interval of |difference| less a margin from the interval of the difference."""
    low, high = getattr(row, f"{prefix}low"), getattr(row, f"{prefix}high")
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return least - margin, max(abs(low), abs(high)) - margin


def _backpropagation(rows: pd.DataFrame) -> list[Difference]:
    """Return BPTT minus zeroth order for every N, at the largest budget that both reached."""
    out = []
    for n, group in rows[rows["seeds"] > 0].groupby("experts"):
        row = group.sort_values("operations").iloc[-1]
        out.append(difference_of(row, f"BPTT minus zeroth order, N={n}"))
    return out
