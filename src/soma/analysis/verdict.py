"""Verdicts on the paper's claims, by a rule that is fixed before any number is seen and printed on the claims page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from soma.analysis.bootstrap import seed_interval

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not testable at this scale", "not run"]
Support = Literal["for", "against", "neither"]

RULE = (
    "Every claim is put as differences that it says are negative (ratios by their logarithm, predictions by the "
    "distance from them less what is allowed). A difference is *for* the claim when its interval over seeds, and "
    "where losses are compared also its interval over documents, lie below zero, *against* it when they lie above "
    "zero, and *neither* otherwise; with a single seed there is no interval over seeds, so it is neither. The "
    "intervals of a claim are simultaneous: they are widened by Holm's procedure, so that the chance that any of its "
    "differences is wrongly for or against it is at most 5 %. A claim is *reproduced* when every difference is for it, "
    "*not reproduced* when at least one is against it, and *inconclusive* otherwise. A claim that the configuration "
    "declares untestable at this scale, with its reason, stays so whatever was measured. A difference tests *theory* "
    "when it compares a measurement with what an identity or a formula predicts, which a correct program cannot miss "
    "by much, and *training* when its outcome depends on how models learn."
)


LOSS = "nats per byte"
"""Unit of a difference of losses."""


@dataclass(frozen=True)
class Difference:
    """A measured difference; the claim says that it is negative."""

    name: str
    mean: float
    low: float
    """Interval over documents, 95 % unless `simultaneous` widened it; NaN if none were resampled."""
    high: float
    seed_low: float
    seed_high: float
    seeds: int
    run: str = ""
    """The runs that were measured."""
    unit: str = LOSS
    interpolated: bool = False
    """True if one of the losses lies between two milestones."""
    theory: bool = False
    """True if it compares a measurement with an identity or a formula, false if it tests what training does."""

    def support(self) -> Support:
        """Return what the difference says about the claim: the side of zero on which its intervals lie."""
        if math.isnan(self.seed_low):
            return "neither"
        lows = [x for x in (self.low, self.seed_low) if not math.isnan(x)]
        highs = [x for x in (self.high, self.seed_high) if not math.isnan(x)]
        return "for" if max(highs) < 0 else "against" if min(lows) > 0 else "neither"


def difference_of(row: Any, name: str = "") -> Difference:
    """Build a Difference from a `contrasts.contrast` row."""
    ends = (row.difference, row.low, row.high, row.seed_low, row.seed_high)
    return Difference(name, *ends, int(row.seeds), row.run, interpolated=bool(row.interpolated))


def difference_over_seeds(
    name: str, values: Sequence[float] | NDArray[np.float64], runs: Iterable[str], unit: str, theory: bool = False
) -> Difference:
    """Build a difference without documents, whose only interval is over seeds."""
    per_seed = np.asarray(values, dtype=np.float64)
    interval, nan = seed_interval(per_seed), float("nan")
    ends = (interval.low, interval.high) if interval else (nan, nan)
    mean = float(per_seed.mean())
    run = " ".join(dict.fromkeys(runs))
    return Difference(name, mean, nan, nan, *ends, len(per_seed), run, unit, theory=theory)


LEVEL = 0.05
"""Chance that any difference of a claim is wrongly for or against it."""


def simultaneous(differences: Sequence[Difference]) -> list[Difference]:
    """Widen the intervals of a claim's differences so that they hold together, by Holm's step-down procedure.

    The difference with the i-th smallest p-value of m (from 0) gets intervals of level 1 - 0.05 / (m - i); from the
    first that does not exclude zero on, all get the same. So an interval excludes zero exactly where Holm's test
    rejects. An interval of another level is the 95 % one, stretched about the mean by the ratio of the quantiles of
    Student's distribution (over seeds, exact) or of the normal one (over documents).
    """
    ps = [_p_value(d) for d in differences]
    out = list(differences)
    order = sorted(range(len(out)), key=lambda i: ps[i])
    alpha, holding = LEVEL, True
    for rank, i in enumerate(order):
        if holding:
            alpha = LEVEL / (len(out) - rank)
            holding = ps[i] <= alpha
        out[i] = _at_level(out[i], alpha)
    return out


def _p_value(d: Difference) -> float:
    """Return the larger of the two-sided p-values over documents and over seeds; 1 without an interval over seeds."""
    from scipy.special import ndtr, ndtri, stdtr, stdtrit  # imported here because it takes long

    if math.isnan(d.seed_low):
        return 1.0
    # How far zero lies from the mean, in halves of the interval on the side of zero.
    to_zero = [
        abs(d.mean) / (high - d.mean if d.mean < 0 else d.mean - low) if low < d.mean < high else math.inf
        for low, high in ((d.low, d.high), (d.seed_low, d.seed_high))
    ]
    over_seeds = 2 * stdtr(d.seeds - 1, -to_zero[1] * stdtrit(d.seeds - 1, 0.975))
    return float(over_seeds if math.isnan(d.low) else max(over_seeds, 2 * ndtr(-to_zero[0] * ndtri(0.975))))


def _at_level(d: Difference, alpha: float) -> Difference:
    """Return a difference with intervals of level 1 - alpha in place of 95 %."""
    from scipy.special import ndtri, stdtrit  # imported here because it takes long

    over_documents = ndtri(1 - alpha / 2) / ndtri(0.975)
    low, high = (d.mean + over_documents * (end - d.mean) for end in (d.low, d.high))
    if math.isnan(d.seed_low):
        return replace(d, low=low, high=high)
    over_seeds = stdtrit(d.seeds - 1, 1 - alpha / 2) / stdtrit(d.seeds - 1, 0.975)
    seed_low, seed_high = (d.mean + over_seeds * (end - d.mean) for end in (d.seed_low, d.seed_high))
    return replace(d, low=low, high=high, seed_low=seed_low, seed_high=seed_high)


def judge(differences: Sequence[Difference], untestable: str | None = None) -> tuple[Verdict, str]:
    """Return the verdict and its reason.

    Args:
        differences: of one claim, with intervals that hold together (`simultaneous`).
    """
    if untestable is not None:
        return "not testable at this scale", untestable
    if not differences:
        return "not run", "not measured by this campaign"
    supports = [d.support() for d in differences]
    if "against" in supports:
        return "not reproduced", f"{supports.count('against')} of {len(supports)} differences are against it"
    if "neither" not in supports:
        return "reproduced", "every difference is for it"
    if any(d.seeds < 2 for d in differences):
        return "inconclusive", "one seed gives no interval over seeds"
    return (
        "inconclusive",
        f"{supports.count('neither')} of {len(supports)} differences have an interval that includes zero",
    )
