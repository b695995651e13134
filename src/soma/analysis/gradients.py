"""Gradient estimates: independent and summed losses, variance, error, and estimators of the field.

Figures 4, 5, 10 and 11, Table 8, claims C4 to C7 and C13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.analysis.contrasts import (
    Side,
    against,
    contrast,
    difference_row,
    loss_row,
    scores_of,
    shared_seeds,
)
from soma.analysis.scores import Scores, at_end
from soma.analysis.verdict import Difference, difference_of, difference_over_seeds
from soma.plan import Plan
from soma.runs import RunSpec


def paired(plan: Plan, rows: pd.DataFrame, histories: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Compute independent minus summed losses at every milestone, early and late.

    Args:
        rows: per-document test losses of the four arms.
        histories: published history of every run, to check that both arms drew the same data and probes.

    Returns:
        One row per (phase, update), and one for the phase `early minus late`, with both losses, `difference` with its
        intervals, and `paired`, true if the hash chains of data and probes (training.learner) are equal throughout.
    """
    product = plan.config.products.paired
    scores = scores_of(plan, rows)
    out: list[dict[str, Any]] = []
    for phase, (independent, summed) in (("early", product.early), ("late", product.late)):
        same = _drew_the_same(plan, independent, summed, histories)
        for update in plan.arm_runs[independent][0].milestones:
            sides = [Side(arm, update) for arm in (independent, summed)]
            losses = [loss_row(plan, scores, side)["loss"] for side in sides]
            where = {"phase": phase, "update": update, "independent": losses[0], "summed": losses[1], "paired": same}
            out.append(where | contrast(plan, scores, *sides))
    out.append({"phase": "early minus late"} | _shrinks(plan, scores))
    return pd.DataFrame(out)


def _shrinks(plan: Plan, scores: Scores) -> dict[str, Any]:
    """Compute the difference at the end of the early runs minus the one at the end of the late runs."""
    product = plan.config.products.paired
    arms = (*product.early, *product.late)
    seeds = shared_seeds(plan, *arms)
    by_arm = [{run.seed: run for run in plan.arm_runs[arm]} for arm in arms]
    keys = [[Side(arm).key(plan, runs[s]) for s in seeds] for arm, runs in zip(arms, by_arm, strict=True)]
    (a, a_draws), (b, b_draws), (c, c_draws), (d, d_draws) = (scores.loss(k) for k in keys)
    runs = list(dict.fromkeys(key[0] for side in keys for key in side))
    return difference_row((a - b) - (c - d), (a_draws - b_draws) - (c_draws - d_draws)) | {"run": " ".join(runs)}


def _drew_the_same(plan: Plan, a: str, b: str, histories: Mapping[str, pd.DataFrame]) -> bool:
    seeds = shared_seeds(plan, a, b)
    columns = ["update", "expert", "data_sha256", "probes_sha256"]

    def drawn(run: RunSpec) -> pd.DataFrame:
        return histories[run.id][columns].sort_values(["update", "expert"]).reset_index(drop=True)

    runs = [{run.seed: run for run in plan.arm_runs[arm]} for arm in (a, b)]
    return all(drawn(runs[0][seed]).equals(drawn(runs[1][seed])) for seed in seeds)


ALLOWED = 0.1
"""Largest relative distance from a prediction at which a measurement still agrees with it."""


def independence(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C4 claims: a variance ratio above 1, and within the allowed distance of the prediction."""
    ratios = rows[(rows["part"] == "variance") & (rows["quantity"] == "ratio")]
    if ratios.empty or (ratios["experts"] < 2).all():
        return []
    value, predicted, runs = ratios["measured"], ratios["predicted"], ratios["run"]
    n = int(ratios["experts"].iloc[0])
    return [
        difference_over_seeds(
            f"independent over summed variance, N={n}", -np.log(value), runs, "log ratio", theory=True
        ),
        difference_over_seeds(
            f"distance of the ratio from {predicted.iloc[0]:.3f}, less {ALLOWED:.0%}",
            (value / predicted - 1).abs() - ALLOWED,
            runs,
            "relative",
            theory=True,
        ),
    ]


def independent_minus_summed(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C5 claims: independent losses lower than summed ones, and a smaller difference late."""
    ends = rows.groupby("phase", sort=False).tail(1)
    names = {"early": "independent minus summed, early", "late": "independent minus summed, late"}
    return [
        difference_of(row, names.get(row.phase, "the early difference minus the late one")) for row in ends.itertuples()
    ]


def variance_by_count(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C6 claims: less variance at more experts, and in proportion to 1 / n_pert."""
    p = plan.config.products.variance
    final = at_end(rows[rows["precision"].ne("fp64")])
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
        out.append(difference_over_seeds(name, ratio, runs, "log ratio"))
    if small != large:
        own = plan.arms[few].seeds
        ratio = values(few, "grouped", large, own) / values(few, "grouped", small, own)
        runs = [run.id for run in plan.arm_runs[few]]
        name = f"distance of n_pert={large} over n_pert={small} from {small}/{large}, less {ALLOWED:.0%}"
        out.append(
            difference_over_seeds(name, np.abs(ratio * large / small - 1) - ALLOWED, runs, "relative", theory=True)
        )
    return out


def estimation_error(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C7 claims of one step's error and of its device time.

    At the first setting the most experts err less than the fewest, in less device time than the fewest take with the
    most directions or the most sequences. For the fewest, more directions and more sequences lower the error, and
    directions lower it more.
    """
    p = plan.config.products.reference
    final = at_end(rows)
    few, many = (by(p.arms, key=lambda arm: plan.arms[arm].experts) for by in (min, max))
    base = p.settings[0]
    directions = max((s for s in p.settings if s[1] == base[1]), key=lambda s: s[0])
    sequences = max((s for s in p.settings if s[0] == base[0]), key=lambda s: s[1])

    def ratio(name: str, column: str, ours: tuple[str, tuple[int, int]], theirs: tuple[str, tuple[int, int]]) -> None:
        """Add the logarithm of our value over theirs, unless both are the same."""
        if ours == theirs:
            return
        seeds = shared_seeds(plan, ours[0], theirs[0])
        logs, runs = [], []
        for arm, (n_pert, batch) in (ours, theirs):
            runs += (own := [run.id for run in plan.arm_runs[arm] if run.seed in seeds])
            at = final[(final["n_pert"] == n_pert) & (final["batch"] == batch)].set_index("run")
            logs.append(np.log(at.loc[own, column].to_numpy()))
        out.append(difference_over_seeds(name, logs[0] - logs[1], runs, "log ratio"))

    out: list[Difference] = []
    counts = f"N={plan.arms[many].experts} over N={plan.arms[few].experts}"
    ratio(f"error, {counts}", "error", (many, base), (few, base))
    if many != few:
        ratio(f"device time, {counts} at n_pert={directions[0]}", "aggregate_seconds", (many, base), (few, directions))
        ratio(f"device time, {counts} at B={sequences[1]}", "aggregate_seconds", (many, base), (few, sequences))
    ratio(f"error at n_pert={directions[0]} over {base[0]}", "error", (few, directions), (few, base))
    ratio(f"error at B={sequences[1]} over {base[1]}", "error", (few, sequences), (few, base))
    if base not in (directions, sequences):
        name = f"error at n_pert={directions[0]} over that at B={sequences[1]}"
        ratio(name, "error", (few, directions), (few, sequences))
    return out


def best_split(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C13 claims: the error at every split of n_pert * B is the predicted one, for each grouping.

    A seed's value is the mean relative distance of the measured error from the predicted one over its splits. The place
    of the smallest measured error is no test: near the minimum the curve is flat, so noise moves it.
    """
    own = rows[rows["part"] == "split"]
    distance = (own["error"] / own["predicted"] - 1).abs() - ALLOWED
    by_run = own.assign(distance=distance).groupby(["group", "run"], sort=False)["distance"].mean().reset_index()
    out = []
    for group, runs in by_run.groupby("group"):
        splits = own.loc[own["group"] == group, "batch"].nunique()
        name = f"{int(group)} summed: mean distance of the error at {splits} splits from the predicted"
        name += f", less {ALLOWED:.0%}"
        out.append(difference_over_seeds(name, runs["distance"], runs["run"], "relative", theory=True))
    return out


def estimators(plan: Plan, rows: pd.DataFrame, variance: pd.DataFrame) -> pd.DataFrame:
    """Compute every estimator's test loss at the end of its budget, the first's minus its own, and its variance.

    Args:
        rows: per-document test losses of the arms.
        variance: rows of the measurement `estimator-variance`.
    """
    arms = plan.config.products.estimators.arms
    scores = scores_of(plan, rows)
    out = []
    for arm in arms:
        run = plan.arm_runs[arm][0]
        spent = {"updates": run.updates, "operations": float(run.operations(run.updates))}
        out.append(spent | against(plan, scores, arms[0], arm))
    return pd.DataFrame(out).merge(variance.rename(columns={"name": "arm", "difference": "rule"}), on="arm", how="left")


TRUSTED = 0.01
"""Largest share of an error that the reference's own noise may add to it."""


def reference_share(rows: pd.DataFrame) -> pd.Series:
    """Return the share of each error that the noise of its reference adds."""
    return rows["reference_error"] / rows["error"]


def by_end(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the column `end`, which marks rows of a run's `first` or `last` milestone."""
    last = rows["update"] == rows.groupby("run")["update"].transform("max")
    return rows.assign(end=np.where(last, "last", "first"))


def means_over_runs(rows: pd.DataFrame, keys: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    """Average values over the rows with equal keys, with the runs behind each mean."""
    return rows.groupby(list(keys), as_index=False).agg({**dict.fromkeys(values, "mean"), "run": " ".join})
