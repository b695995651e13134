"""Verdicts on the paper's claims, by a rule that is stated before any number is seen and printed on the claims page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["reproduced", "not reproduced", "inconclusive", "not testable at this scale", "not run"]

RULE = (
    "A difference supports a claim when its 95 % interval over documents and its 95 % interval over seeds both "
    "exclude zero on the claim's side, and contradicts it when both exclude zero on the other side. A claim is "
    "*reproduced* when every difference it speaks of supports it, *not reproduced* when at least one contradicts "
    "it, and *inconclusive* otherwise; with a single seed there is no interval over seeds, so the verdict cannot be "
    "more than inconclusive. A claim that the configuration declares untestable at this scale, with its reason, "
    "stays so whatever was measured."
)


@dataclass(frozen=True)
class Difference:
    """A measured difference; the claim says that it is negative."""

    name: str
    mean: float
    low: float
    high: float
    seed_low: float
    seed_high: float
    seeds: int

    def side(self) -> int:
        """-1: supports, +1: contradicts, 0: neither."""
        if math.isnan(self.seed_low):
            return 0
        lows, highs = (self.low, self.seed_low), (self.high, self.seed_high)
        return -1 if max(highs) < 0 else 1 if min(lows) > 0 else 0


def judge(differences: Sequence[Difference], untestable: str | None = None) -> tuple[Verdict, str]:
    """The verdict and the reason for it."""
    if not differences:
        return "not run", "not measured by this campaign"
    if untestable is not None:
        return "not testable at this scale", untestable
    against = [d.name for d in differences if d.side() > 0]
    if against:
        return "not reproduced", f"the opposite holds against {', '.join(against)}"
    undecided = [d.name for d in differences if d.side() == 0]
    if not undecided:
        return "reproduced", "every difference excludes zero, over documents and over seeds"
    if any(d.seeds < 2 for d in differences):
        return "inconclusive", "one seed gives no interval over seeds"
    return "inconclusive", f"an interval includes zero against {', '.join(undecided)}"


def from_row(row: Any, name: str) -> Difference:
    """From a row of `fixed_size.summarise`'s differences."""
    return Difference(name, row.difference, row.low, row.high, row.seed_low, row.seed_high, row.seeds)
