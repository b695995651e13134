"""The paper's quantities as data: all of them in numbers.json, the few of one screen in metrics.json.

Pages quote numbers.json; `dvc metrics` shows metrics.json and compares it between versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from soma.analysis.claims import COUNTED, Judged, counted
from soma.analysis.verdict import LOSS, Difference, difference_of
from soma.plan import Plan


def collect(
    plan: Plan,
    losses: pd.DataFrame,
    judged_claims: Sequence[Judged],
    controls: pd.DataFrame | None,
    sizes: pd.DataFrame | None,
    ngrams: pd.DataFrame,
) -> dict[str, Any]:
    """Collect the losses of Tables 4 and 9, all differences of claims and controls with intervals, and the verdicts.

    Args:
        losses: rows of `fixed_size.losses`.
        judged_claims: every claim with its differences and verdict.
        controls, sizes: rows of `controls.controls` and `controls.sizes`, if the campaign has them.
        ngrams: rows of `fixed_size.ngrams`.
    """
    ends = [] if sizes is None else [*sizes[sizes["iterate"] == "last"].itertuples()]
    measured = [] if controls is None else controls[controls["seeds"] > 0].groupby("control")
    verdicts = {judged.claim: judged.verdict for judged in judged_claims}
    statuses = {judged.claim: judged.status for judged in judged_claims}
    return {
        "test loss": _losses(plan, losses[losses["set"] == "test"]),
        "external loss": _losses(plan, losses[losses["set"] == "external"]),
        "differences": {judged.claim: {d.name: _ends(d) for d in judged.differences} for judged in judged_claims},
        "controls": {
            control: {f"{row.ours} minus {row.theirs}": _ends(difference_of(row)) for row in rows.itertuples()}
            for control, rows in measured
        },
        "sizes": _numbers({row.arm: row.loss for row in ends}),
        "references": _numbers({row.model: row.loss for row in ngrams[ngrams["set"] == "test"].itertuples()}),
        "verdicts": {name: sum(v == name for v in verdicts.values()) for name in sorted(set(verdicts.values()))},
        "counts": {"text": counted(judged_claims)},
        "claims": statuses,
    }


def headline(plan: Plan, numbers: Mapping[str, Any], judged_claims: Sequence[Judged]) -> dict[str, float]:
    """Return the numbers that fit one screen, by flat names, so that two versions can be compared at a glance.

    These are the number of claims of each verdict, the test loss of every arm of the comparison at equal total size (in
    nats per byte), and the first difference of every claim about losses. The names do not depend on the outcome.

    Args:
        numbers: result of `collect`.
    """
    fixed = plan.config.products.fixed_size
    losses = {name: numbers["test loss"].get(name) for name in (fixed.soma, *fixed.against)}
    first = {judged.claim: judged.differences[0] for judged in judged_claims if judged.differences}
    return {
        **{f"claims {verdict}": numbers["verdicts"].get(verdict, 0) for verdict in COUNTED},
        **_numbers({f"loss {name}": loss for name, loss in losses.items() if loss is not None}),
        **_numbers({f"difference {claim}": d.mean for claim, d in first.items() if d.unit == LOSS}),
    }


def _losses(plan: Plan, rows: pd.DataFrame) -> dict[str, float]:
    """Return the last iterate's mean loss over seeds at the end of the budget, at the arm's k, by arm and any split."""
    rows = rows[rows["seed"].isna() & (rows["iterate"] == "last")]
    out: dict[str, float] = {}
    for name in plan.config.products.fixed_size.arms:
        end, k = plan.arm_runs[name][0].updates, plan.arms[name].active
        own = rows[(rows["arm"] == name) & (rows["update"] == end) & (rows["k"] == k)]
        out |= _numbers({f"{name} {row.split}".strip(): row.loss for row in own.itertuples()})
    return out


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Leave out what is infinite or not a number, which JSON cannot represent."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def _ends(difference: Difference) -> dict[str, float | str]:
    """Return a difference with its intervals, and which way it speaks."""
    names = ("mean", "low", "high", "seed_low", "seed_high", "seeds")
    return _numbers({name: getattr(difference, name) for name in names}) | {"speaks": difference.support()}
