"""Which model is best under a budget of operations: single models and ensembles of several sizes. Beyond the paper.

At every budget, a parabola in the logarithm of the parameters is fitted to the losses of single models; its lowest
point is the best size. The best size and the lowest loss are fitted by power laws of the budget, which are
extrapolated to a larger one. Of the arms of a kind, ensemble validation chooses the one with the lowest loss; test
losses are compared.

Intervals of fits resample documents and seeds together: a draw takes S - 1 of S seeds with replacement, which gives the
mean over seeds its unbiased variance (Rao and Wu 1988). Differences have an interval over documents and one over seeds.

Shapes: A arms, C budgets, S seeds, R draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.analysis.bootstrap import percentile_interval
from soma.analysis.contrasts import at_budget, averaged, difference_row, scores_of, shared_seeds
from soma.analysis.inference import token_operations
from soma.analysis.scores import Scores
from soma.config.products import Kind
from soma.errors import SomaError
from soma.numerics.rng import Stream
from soma.plan import Plan

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """Losses of arms on one set at budgets, by seed."""

    arms: tuple[str, ...]
    budgets: tuple[float, ...]
    seeds: tuple[int, ...]
    mean: Floats
    """[A, C, S]"""
    draws: Floats
    """[R, A, C, S]"""

    def of(self, arms: Sequence[str]) -> tuple[Floats, Floats]:
        """Return means [len(arms), C, S] and draws [R, len(arms), C, S]."""
        at = [self.arms.index(arm) for arm in arms]
        return self.mean[at], self.draws[:, at]


def curves(plan: Plan, scores: Scores, arms: Sequence[str], budgets: Sequence[float]) -> Curves:
    """Collect the losses of arms at budgets, for the seeds that all have.

    Raises:
        SomaError: if the curve of an arm does not cover a budget.
    """
    seeds = shared_seeds(plan, *arms)
    mean = np.empty((len(arms), len(budgets), len(seeds)))
    draws = np.empty((plan.config.bootstrap_draws, *mean.shape))
    for a, arm in enumerate(arms):
        for c, budget in enumerate(budgets):
            at = at_budget(plan, scores, arm, budget)
            for s, seed in enumerate(seeds):
                if seed not in at:
                    raise SomaError(
                        f"the arm `{arm}` has no loss at {budget:g} operations; choose budgets of products.frontier "
                        "between its first milestone and its end."
                    )
                mean[a, c, s], draws[:, a, c, s], _ = at[seed]
    return Curves(tuple(arms), tuple(budgets), tuple(seeds), mean, draws)


def points(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the loss of every arm at every budget on both sets, with what it costs to keep and to serve.

    Args:
        rows: per-document validation and test losses of the arms.

    Returns:
        One row per (set, arm, budget): `kind`, N, width, partition, `parameters`, `token_operations` of a served byte,
        the loss with its intervals, and `chosen`, true for the arm of its kind with the lowest validation loss.
    """
    product, out = plan.config.products.frontier, []
    for set_, own in rows.groupby("set"):
        scores = scores_of(plan, own)
        for kind, arms in product.kinds.items():
            for budget in product.budgets:
                out += [_point(plan, scores, str(set_), kind, arm, budget) for arm in arms]
        for kind, arm in product.outcomes.items():
            out.append(_point(plan, scores, str(set_), kind, arm, product.larger))
    by_budget = pd.DataFrame(out)
    validation = by_budget[(by_budget["set"] == "validation") & by_budget["arm"].isin(product.compared)]
    best = validation.loc[validation.groupby(["kind", "operations"])["loss"].idxmin()]
    chosen = set(zip(best["arm"], best["operations"], strict=True))
    return by_budget.assign(chosen=[(row.arm, row.operations) in chosen for row in by_budget.itertuples()])


def _point(plan: Plan, scores: Scores, set_: str, kind: Kind, arm: str, budget: float) -> dict[str, Any]:
    run = plan.arm_runs[arm][0]
    where = {"set": set_, "kind": kind, "arm": arm, "operations": budget, "experts": run.experts}
    where |= {"width": run.settings.width, "partition": run.settings.partition, "parameters": run.parameters}
    loss = averaged(plan, arm, at_budget(plan, scores, arm, budget))
    return where | {"token_operations": token_operations(plan, arm)} | loss


def chosen_arms(by_budget: pd.DataFrame, kind: Kind) -> list[str]:
    """Return the arm of a kind that validation chose at every budget, in ascending order of budgets.

    Args:
        by_budget: rows of `points`.
    """
    own = by_budget[(by_budget["set"] == "test") & (by_budget["kind"] == kind) & by_budget["chosen"]]
    return list(own.sort_values("operations")["arm"])


def fits(plan: Plan, rows: pd.DataFrame, by_budget: pd.DataFrame) -> pd.DataFrame:
    """Fit the best size and the lowest loss as functions of the budget, and extrapolate them.

    Args:
        rows: per-document test losses of the arms.
        by_budget: rows of `points`.

    Returns:
        One row per (`part`, `kind`, operations) with `value` and the ends `low` and `high` of its 95 % interval over
        seeds and documents, and the runs behind it:
        - `best size`: parameters at the lowest point of the parabola; `inside` is the share of draws in which it lies
          between two of the sizes, `misfit` the largest distance of a size's loss from the parabola;
        - `lowest loss`: the loss there; of ensembles, that of the chosen arm;
        - `experts`: the loss of the chosen arm with `experts` experts; `share` of draws in which this N is lowest;
        - `size exponent`, `loss exponent`: slopes of the logarithms of the above against that of the operations;
        - `best size` and `lowest loss` once more, at the larger budget, with `extrapolated` true.
    """
    product = plan.config.products.frontier
    whole = curves(plan, scores_of(plan, rows[rows["set"] == "test"]), product.compared, product.budgets)
    weights = _seed_weights(plan, len(whole.seeds))
    out: list[dict[str, Any]] = []

    def add(
        part: str, kind: Kind, operations: float, value: float, draws: Floats, arms: Iterable[str], **more: Any
    ) -> None:
        interval = percentile_interval(value, draws)
        where = {"part": part, "kind": kind, "operations": operations, "extrapolated": operations > product.budgets[-1]}
        ends = {"value": value, "low": interval.low, "high": interval.high, "run": _runs(plan, arms, whole.seeds)}
        out.append(where | ends | more)

    def over_seeds(arms: Sequence[str]) -> tuple[Floats, Floats]:
        """Return losses [len(arms), C] and draws of seeds and documents [R, len(arms), C]."""
        mean, draws = whole.of(arms)
        return mean.mean(axis=-1), np.einsum("racs,rs->rac", draws, weights)

    sizes = np.log([plan.arm_runs[arm][0].parameters for arm in product.monoliths])
    mean, draws = over_seeds(product.monoliths)
    best, lowest, _, misfit = lowest_point(sizes, mean.T)
    best_draws, lowest_draws, inside, _ = lowest_point(sizes, draws.swapaxes(1, 2))
    picked = chosen_arms(by_budget, "ensemble")
    at = [(product.ensembles.index(arm), c) for c, arm in enumerate(picked)]
    theirs, their_draws = over_seeds(product.ensembles)
    own, own_draws = np.array([theirs[i] for i in at]), np.stack([their_draws[:, a, c] for a, c in at], axis=1)
    for c, budget in enumerate(product.budgets):
        facts = {"inside": float(inside[:, c].mean()), "misfit": float(misfit[c])}
        add("best size", "monolith", budget, np.exp(best[c]), np.exp(best_draws[:, c]), product.monoliths, **facts)
        add("lowest loss", "monolith", budget, lowest[c], lowest_draws[:, c], product.monoliths)
        add("lowest loss", "ensemble", budget, own[c], own_draws[:, c], [picked[c]], arm=picked[c])
        of_counts = _best_of_counts(by_budget, budget)
        counted, count_draws = over_seeds([*of_counts.values()])
        winner = count_draws[:, :, c].argmin(axis=1)
        for i, (n, arm) in enumerate(of_counts.items()):
            kind: Kind = "monolith" if n == 1 else "ensemble"
            share = float((winner == i).mean())
            more = {"experts": n, "share": share, "arm": arm}
            add("experts", kind, budget, counted[i, c], count_draws[:, i, c], [arm], **more)
    spent, end = np.log(product.budgets), product.larger
    for part, kind, value, value_draws in (
        ("best size", "monolith", best, best_draws),
        ("lowest loss", "monolith", np.log(lowest), np.log(lowest_draws)),
        ("lowest loss", "ensemble", np.log(own), np.log(own_draws)),
    ):
        arms = product.monoliths if kind == "monolith" else picked
        (slope, there), (slopes, theres) = (power_law(spent, v, np.log(end)) for v in (value, value_draws))
        add(f"{part.split()[1]} exponent", kind, product.budgets[-1], float(slope), slopes, arms)
        add(part, kind, end, float(np.exp(there)), np.exp(theres), arms)
    return pd.DataFrame(out)


def differences(plan: Plan, rows: pd.DataFrame, by_budget: pd.DataFrame) -> pd.DataFrame:
    """Compute the differences that answer the frontier's questions (`catalogue.QUESTIONS`), on test.

    Args:
        rows: per-document test losses of the arms.
        by_budget: rows of `points`.

    Returns:
        One row per (question, `ours`, `theirs`, operations) with `difference`, negative if the question's statement
        holds, its intervals and its `unit`.
    """
    product = plan.config.products.frontier
    scores = scores_of(plan, rows[rows["set"] == "test"])
    whole = curves(plan, scores, product.compared, product.budgets)
    out: list[dict[str, Any]] = []

    def add(question: str, ours: str, theirs: str, operations: float, mean: Floats, draws: Floats, arms: Iterable[str],
            unit: str = "nats per byte") -> None:  # fmt: skip
        where = {"question": question, "ours": ours, "theirs": theirs, "operations": operations, "unit": unit}
        out.append(where | difference_row(mean, draws) | {"run": _runs(plan, arms, whole.seeds)})

    pairs = list(zip(chosen_arms(by_budget, "ensemble"), chosen_arms(by_budget, "monolith"), strict=True))
    gaps = [_gap(whole, ours, theirs, c) for c, (ours, theirs) in enumerate(pairs)]
    for (ours, theirs), budget, gap in zip(pairs, product.budgets, gaps, strict=True):
        add("F1", ours, theirs, budget, *gap, (ours, theirs))
    slope = _slope(np.log10(product.budgets))
    chosen = dict.fromkeys(arm for pair in pairs for arm in pair)
    trend = np.einsum("c,cs->s", slope, np.stack([mean for mean, _ in gaps]))
    trend_draws = np.einsum("c,rcs->rs", slope, np.stack([draws for _, draws in gaps], axis=1))
    names = ("best ensemble minus best single model", "that at a tenth of the operations")
    add("F2", *names, product.budgets[-1], trend, trend_draws, chosen, "nats per byte and decade")
    for ours, theirs in _same_but_for_shards(plan):
        for c in (0, len(product.budgets) - 1):
            add("F3", ours, theirs, product.budgets[c], *_gap(whole, ours, theirs, c), (ours, theirs))
    sizes = np.log([plan.arm_runs[arm][0].parameters for arm in product.monoliths])
    exponents = []
    for losses in whole.of(product.monoliths):
        best = lowest_point(sizes, np.moveaxis(losses, -3, -1))[0]  # [(R,) C, S]
        exponents.append(-np.einsum("c,...cs->...s", _slope(np.log(product.budgets)), best))
    names = ("no growth", "exponent of the best size")
    add("F4", *names, product.budgets[-1], exponents[0], exponents[1], product.monoliths, "exponent")
    predicted = fits(plan, rows, by_budget) if product.outcomes else pd.DataFrame()
    out += [_outcome(plan, scores, predicted, kind, arm) for kind, arm in product.outcomes.items()]
    for ours, theirs in product.schedules.items():
        run = plan.arm_runs[theirs][0]
        budget = float(run.operations(run.updates))
        both = curves(plan, scores, (ours, theirs), (budget,))
        add("F6", theirs, ours, budget, *_gap(both, theirs, ours, 0), (ours, theirs))
    return pd.DataFrame(out)


def _outcome(plan: Plan, scores: Scores, predicted: pd.DataFrame, kind: Kind, arm: str) -> dict[str, Any]:
    """Compare a larger run with the extrapolation; both intervals are added, as of independent values.

    Args:
        predicted: rows of `fits`.
    """
    product = plan.config.products.frontier
    own = predicted[(predicted["part"] == "lowest loss") & (predicted["kind"] == kind) & predicted["extrapolated"]]
    value, below, above = (float(own[name].iloc[0]) for name in ("value", "low", "high"))
    run = curves(plan, scores, (arm,), (product.larger,))
    row = difference_row(run.mean[0, 0] - value, run.draws[:, 0, 0] - value)
    for low, high in (("low", "high"), ("seed_low", "seed_high")):
        row[low] = row["difference"] - np.hypot(row["difference"] - row[low], above - value)
        row[high] = row["difference"] + np.hypot(row[high] - row["difference"], value - below)
    where = {"question": "F5", "ours": arm, "theirs": "the extrapolation", "operations": product.larger}
    return where | {"unit": "nats per byte"} | row | {"run": _runs(plan, [arm], run.seeds)}


def lowest_point(x: Floats, y: Floats) -> tuple[Floats, Floats, NDArray[np.bool_], Floats]:
    """Find the lowest point of the parabola through points, within their range.

    Args:
        x: [M]; with two points the lower one is taken.
        y: [..., M].

    Returns:
        Place and value of the lowest point [...], whether it is a minimum inside the range, and the largest distance of
        a point from the parabola.
    """
    if len(x) < 3:
        at = y.argmin(axis=-1)
        return x[at], y.min(axis=-1), np.zeros(at.shape, bool), np.zeros(at.shape)
    middle = x.mean()
    basis = np.vander(x - middle, 3, increasing=True)
    coefficients = y @ np.linalg.pinv(basis).T
    ends = np.array([x.min(), x.max()]) - middle
    with np.errstate(divide="ignore", invalid="ignore"):
        turn = -coefficients[..., 1] / (2 * coefficients[..., 2])
    inside = (coefficients[..., 2] > 0) & (ends[0] < turn) & (turn < ends[1])
    at_ends = coefficients @ np.vander(ends, 3, increasing=True).T
    place = np.where(inside, turn, ends[at_ends.argmin(axis=-1)])
    value = coefficients[..., 0] + coefficients[..., 1] * place + coefficients[..., 2] * place**2
    return place + middle, value, inside, np.abs(coefficients @ basis.T - y).max(axis=-1)


def power_law(x: Floats, y: Floats, at: float) -> tuple[Floats, Floats]:
    """Fit a line through logarithms.

    Args:
        x: [C]; y: [..., C].

    Returns:
        The slope and the value at `at`, [...].
    """
    slope = y @ _slope(x)
    return slope, y.mean(axis=-1) + slope * (at - x.mean())


def _slope(x: Floats) -> Floats:
    """Return weights whose product with values at x is the slope of the line of least squares through them."""
    centred: Floats = x - np.mean(x)
    return centred / (centred @ centred)


def _seed_weights(plan: Plan, seeds: int) -> Floats:
    """Return the weights of seeds in every draw, [R, S], each row with the sum 1."""
    draws = plan.config.bootstrap_draws
    if seeds == 1:
        return np.ones((draws, 1))
    stream = Stream.named(plan.config.seed, "bootstrap", "seeds")
    taken = stream.integers(seeds - 1, seeds, update=np.arange(draws))
    return np.stack([np.bincount(row, minlength=seeds) for row in taken]) / (seeds - 1)


def _best_of_counts(by_budget: pd.DataFrame, budget: float) -> Mapping[int, str]:
    """Return the arm of every N with the lowest validation loss at a budget."""
    own = by_budget[(by_budget["set"] == "validation") & (by_budget["operations"] == budget)]
    best = own.loc[own.groupby("experts")["loss"].idxmin()]
    return dict(zip(best["experts"].astype(int), best["arm"], strict=True))


def _same_but_for_shards(plan: Plan) -> list[tuple[str, str]]:
    """Return pairs of ensembles of one N and width, on clusters and on random shards."""
    arms = {name: plan.arms[name] for name in plan.config.products.frontier.ensembles}
    return [
        (ours, theirs)
        for ours, a in arms.items()
        for theirs, b in arms.items()
        if (a.partition, b.partition) == ("clusters", "random") and (a.experts, a.width) == (b.experts, b.width)
    ]


def _gap(whole: Curves, ours: str, theirs: str, budget: int) -> tuple[Floats, Floats]:
    """Return our loss minus theirs at a budget by seed, [S], and its draws [R, S]."""
    mean, draws = whole.of((ours, theirs))
    return mean[0, budget] - mean[1, budget], draws[:, 0, budget] - draws[:, 1, budget]


def _runs(plan: Plan, arms: Iterable[str], seeds: Sequence[int]) -> str:
    return " ".join(run.id for arm in dict.fromkeys(arms) for run in plan.arm_runs[arm] if run.seed in seeds)
