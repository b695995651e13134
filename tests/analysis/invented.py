"""Invented per-document rows and costs of a campaign with known results."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from soma.accounting.cost import Ledger
from soma.analysis.costs import run_costs
from soma.config.campaign import load
from soma.evaluation.rows import COLUMNS
from soma.plan import Plan, make_plan
from soma.runs import ITERATES, RunSpec

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS, BYTES = 12, 100

Advantage = Callable[[str, RunSpec, int, str, int], float]
"""Nats per byte by which a loss is lower, as a function of (arm, run, update, iterate, k)."""


def toy_plan() -> Plan:
    return make_plan(load(ROOT / "config/config.yaml", ROOT / "config/toy.yaml"))


def losses(plan: Plan, arms, advantage: Advantage, set_="test") -> pd.DataFrame:
    """A loss per document that is the same for all runs, minus the advantage."""
    generator, out, seen = np.random.default_rng(0), [], set()
    hardness = generator.normal(2.5, 0.2, DOCUMENTS)
    for arm in arms:
        for run in plan.arm_runs[arm]:
            if run.id in seen:
                continue
            seen.add(run.id)
            for update in run.milestones:
                for iterate in ITERATES:
                    for k in plan.active_counts(arm):
                        nats = BYTES * (hardness - advantage(arm, run, update, iterate, k))
                        keys = (run.id, set_, "", update, iterate, k)
                        out += [(*keys, d, f"d{d}", "", "", 1, BYTES, nats[d]) for d in range(DOCUMENTS)]
    return pd.DataFrame(out, columns=list(COLUMNS))


def costs(
    plan: Plan,
    seconds_per_operation: float = 1e-11,
    preprocessing: float = 0.1,
    devices: Mapping[str, int] = MappingProxyType({}),
) -> pd.DataFrame:
    """Costs whose time is proportional to operations.

    Args:
        devices: number of devices per run id, if it is not 1.
    """

    def record(run: RunSpec, part: str) -> dict:
        share = len(plan.parts(run))
        marks = {str(u): {"update": run.operations(u) * seconds_per_operation / share} for u in run.milestones}
        ledger = Ledger.from_json({"seconds": {}, "processor": {}, "sessions": [[0.0, 1.0]], "marks": marks}).to_json()
        return {"ledger": ledger, "devices": devices.get(run.id, 1), "device": "cpu", "threads": 1, "engine": "cpu"}

    records = {run.id: {part: record(run, part) for part in plan.parts(run)} for run in plan.runs.values()}
    return run_costs(plan, records, preprocessing)
