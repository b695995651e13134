"""The claims of the paper, judged by what a campaign measured.

A claim is put as differences that it says are negative. Ratios enter as logarithms, predictions as the measurement's
distance from them minus the allowed distance; the rule that turns them into verdicts (`analysis.verdict`) uses nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from soma.analysis.functions import function
from soma.analysis.verdict import Difference, Verdict, judge, simultaneous
from soma.catalogue import CLAIMS
from soma.plan import Plan

Rows = Callable[[str], pd.DataFrame]
"""Maps the name of a measurement or summary to its rows."""


@dataclass(frozen=True)
class Judged:
    """A claim with its measured differences, and the verdict with its reason."""

    claim: str
    differences: Sequence[Difference]
    """With intervals that hold together (`verdict.simultaneous`)."""
    verdict: Verdict
    reason: str


def verdicts(plan: Plan, rows: Rows) -> list[Judged]:
    """Judge every claim of the catalogue."""
    judged = []
    for claim in CLAIMS:
        evidence = function("soma.analysis", claim.function)
        differences = simultaneous(evidence(plan, *(rows(name) for name in claim.reads)))
        judged.append(Judged(claim.name, differences, *judge(differences, plan.config.untestable.get(claim.name))))
    return judged
