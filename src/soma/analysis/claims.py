"""The claims of the paper, judged by what a campaign measured.

A claim is put as differences that it says are negative. Ratios enter as logarithms, predictions as the measurement's
distance from them minus the allowed distance; the rule that turns them into verdicts (`analysis.verdict`) uses nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from soma.analysis.functions import function
from soma.analysis.rates import reasons
from soma.analysis.verdict import LOSS, Difference, Verdict, judge, simultaneous
from soma.catalogue import MEASUREMENTS, RATES
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
    superseded: str = ""
    """Why the verdict does not stand, although it is what the rule gives for these rows; empty if it stands."""

    @property
    def status(self) -> str:
        """The verdict, marked if it does not stand."""
        return f"{self.verdict}, superseded" if self.superseded else self.verdict


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
    superseded = sum(bool(judged.superseded) for judged in judged_claims)
    return ", ".join(words) + (
        f"; {superseded} of these {'is' if superseded == 1 else 'are'} superseded" if superseded else ""
    )


def verdicts(plan: Plan, rows: Rows) -> list[Judged]:
    """Judge every claim of the campaign's catalogue."""
    judged, chosen = [], reasons(rows(RATES))
    for claim in plan.config.catalogue.claims:
        evidence = function("soma.analysis", claim.function)
        differences = simultaneous(evidence(plan, *(rows(name) for name in claim.reads)))
        verdict, reason = judge(differences, plan.config.untestable.get(claim.name))
        superseded = ""
        if verdict in _MEASURED:
            older = [name for name in claim.reads if _older(name, rows)]
            faults = [f"`{name}` was measured by an older definition" for name in older]
            superseded = "; ".join(filter(None, [*faults, _unsearched(plan, differences, chosen)]))
        judged.append(Judged(claim.name, differences, verdict, reason, superseded))
    return judged


_MEASURED = ("reproduced", "not reproduced", "inconclusive")


def _older(name: str, rows: Rows) -> bool:
    """Return if the rows of a measurement lack a column that its definition has now."""
    since = MEASUREMENTS[name].since if name in MEASUREMENTS else None
    return since is not None and since not in rows(name)


def _unsearched(plan: Plan, differences: Sequence[Difference], chosen: Mapping[str, str]) -> str:
    """Name the compared arms whose rates no search of the campaign chose as `analysis.rates` asks.

    Only losses of different arms depend on it: a variance or an error is measured at whatever weights there are, and
    one arm is compared with itself, for several numbers of active experts, at whatever rates it has.

    Args:
        chosen: result of `rates.reasons`.
    """
    arm_of = {run.id: arm for arm, runs in plan.arm_runs.items() for run in runs}
    arm_of |= {run.id: arm for arm in chosen if arm in plan.arm_runs for run in plan.arm_runs[arm]}
    sweep = plan.config.products.sweep
    base = dict.fromkeys(plan.groups["sweep"], sweep.arm) if sweep else {}  # whose rates its variants have
    compared: dict[str, None] = {}
    for difference in differences:
        arms = dict.fromkeys(arm_of[run] for run in difference.run.split() if run in arm_of)
        if difference.unit == LOSS and not difference.theory and len(arms) > 1:
            compared |= dict.fromkeys(base.get(arm, arm) for arm in arms)
    return "; ".join(f"{arm} ({chosen[arm]})" for arm in compared if arm in chosen)
