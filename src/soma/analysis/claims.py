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


COUNTED: tuple[Verdict, ...] = (
    "reproduced",
    "not reproduced",
    "inconclusive",
    "not testable at this scale",
    "not run",
)
"""Verdicts in the order of their counts."""


def counted(judged_claims: Sequence[Judged]) -> str:
    """Count the verdicts, as in `3 reproduced (1 of them by theory alone), 1 inconclusive`."""
    words = []
    for name in COUNTED:
        own = [judged for judged in judged_claims if judged.verdict == name]
        theory = sum(all(d.theory for d in judged.differences) for judged in own if judged.differences)
        words += [f"{len(own)} {name}" + (f" ({theory} of them by theory alone)" if theory else "")] if own else []
    return ", ".join(words)


def verdicts(plan: Plan, rows: Rows) -> list[Judged]:
    """Judge every claim of the catalogue."""
    judged = []
    for claim in CLAIMS:
        evidence = function("soma.analysis", claim.function)
        differences = simultaneous(evidence(plan, *(rows(name) for name in claim.reads)))
        judged.append(Judged(claim.name, differences, *judge(differences, plan.config.untestable.get(claim.name))))
    return judged
