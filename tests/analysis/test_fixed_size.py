"""The summary of invented per-document rows with known results."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from soma.analysis import fixed_size
from soma.config.campaign import load
from soma.errors import SomaError
from soma.evaluation.rows import COLUMNS
from soma.plan import make_plan

ROOT = Path(__file__).parent.parent.parent
PLAN = make_plan(load(ROOT / "config/config.yaml", ROOT / "config/toy.yaml"))
DOCUMENTS, BYTES = 12, 100


def rows(advantage=0.1, noise=0.0):
    """Make SOMA better than every other arm by `advantage` nats per byte at the end, on every document."""
    generator, out = np.random.default_rng(0), []
    hardness = generator.normal(2.5, 0.2, DOCUMENTS)
    for arm in PLAN.config.products.fixed_size.arms:
        for run in PLAN.arm_runs[arm]:
            for update in run.milestones:
                for iterate in ("last", "average"):
                    for k in PLAN.active_counts(arm):
                        better = advantage if arm == "soma-n2" and update == run.updates else 0.0
                        for d in range(DOCUMENTS):
                            loss = hardness[d] - better + 0.01 * run.seed + noise * generator.normal()
                            out.append(
                                (run.id, "test", "", update, iterate, k, d, f"d{d}", "", "", 1, BYTES, BYTES * loss)
                            )
    return pd.DataFrame(out, columns=list(COLUMNS))


def test_differences_are_paired():
    table = rows()
    losses, differences = fixed_size.losses(PLAN, table), fixed_size.differences(PLAN, table)
    final = differences[differences["iterate"] == "last"].set_index("other")
    assert np.allclose(final["difference"], -0.1, atol=1e-12)
    assert np.allclose(final["high"] - final["low"], 0, atol=1e-12)  # the same on every document
    assert list(final["seeds"]) == [2, 1, 1, 1, 1]
    assert final.loc["spsa-n1-p8", "seed_high"] < 0
    assert np.isnan(final.loc["spsa-n1-p32", "seed_low"])
    mean = losses[(losses["arm"] == "soma-n2") & losses["seed"].isna() & (losses["update"] == 140)]
    assert (mean["high"] - mean["low"] > 0.05).all()  # documents differ


def test_operations_and_runs_are_those_of_the_plan():
    losses = fixed_size.losses(PLAN, rows())
    row = losses[(losses["arm"] == "soma-n4") & losses["seed"].notna()].iloc[-1]
    run = PLAN.runs["soma-n4-s0"]
    assert (row["run"], row["operations"]) == (run.id, run.operations(row["update"]))


def test_runs_on_different_documents_are_refused():
    table = rows()
    drop = (table["run"] == "soma-n2-s0") & (table["document"] == 3)
    with pytest.raises(SomaError, match="same documents"):
        fixed_size.losses(PLAN, table[~drop])
