"""Verdicts on the paper's claims, by a rule that is fixed before any number is seen and printed on the claims page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from soma.analysis.bootstrap import seed_interval

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not testable at this scale", "not run"]
Support = Literal["for", "against", "neither"]

RULE = (
    "Every claim is put as differences that it says are negative (ratios by their logarithm, predictions by the "
    "distance from them less what is allowed). A difference is *for* the claim when its 95 % interval over seeds, "
    "and where losses are compared also its 95 % interval over documents, lie below zero, *against* it when they "
    "lie above zero, and *neither* otherwise; with a single seed there is no interval over seeds, so it is "
    "neither. A claim is *reproduced* when every difference is for it, *not reproduced* when at least one is "
    "against it, and *inconclusive* otherwise. A claim that the configuration declares untestable at this scale, "
    "with its reason, stays so whatever was measured."
)


@dataclass(frozen=True)
class Difference:
    """A measured difference; the claim says that it is negative."""

    name: str
    mean: float
    low: float
    """95 % interval over documents; NaN if none were resampled."""
    high: float
    seed_low: float
    seed_high: float
    seeds: int
    run: str = ""
    """The runs that were measured."""
    unit: str = "nats per byte"
    interpolated: bool = False
    """True if one of the losses lies between two milestones."""

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
    name: str, values: Sequence[float] | NDArray[np.float64], runs: Iterable[str], unit: str
) -> Difference:
    """Build a difference without documents, whose only interval is over seeds."""
    per_seed = np.asarray(values, dtype=np.float64)
    interval, nan = seed_interval(per_seed), float("nan")
    ends = (interval.low, interval.high) if interval else (nan, nan)
    mean = float(per_seed.mean())
    return Difference(name, mean, nan, nan, *ends, len(per_seed), " ".join(dict.fromkeys(runs)), unit)


def judge(differences: Sequence[Difference], untestable: str | None = None) -> tuple[Verdict, str]:
    """Return the verdict and its reason."""
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
