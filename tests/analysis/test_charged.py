"""One total that pays for everything: what is charged, and that validation alone chooses."""

from dataclasses import replace

import pandas as pd
import pytest

from soma.analysis.charged import charged_operations, curves
from soma.errors import SomaError
from tests.analysis.invented import losses, toy_plan


def rows_of(plan, on_validation, on_test):
    arms = plan.config.products.charged.arms
    return pd.concat([losses(plan, arms, on_validation, "validation"), losses(plan, arms, on_test, "test")])


def test_seed_run_routing_and_validation_are_charged():
    plan = toy_plan()
    run = plan.arm_runs["soma-n2"][0]
    spent = charged_operations(plan, run, run.updates, 2, 8192)
    seed = plan.runs[run.start]
    assert spent["training"] == run.operations(run.updates)
    assert spent["seed run"] == seed.operations(seed.updates) > 0
    assert all(value > 0 for value in spent.values())
    early = charged_operations(plan, run, run.milestones[0], 2, 8192)
    assert early["validation"] < spent["validation"]
    alone = plan.arm_runs["spsa-n1-p8"][0]
    assert charged_operations(plan, alone, alone.updates, 1, 8192)["routing"] == 0


def test_a_run_stops_where_validation_is_lowest_whatever_test_says():
    plan = toy_plan()
    first = {run.id: run.milestones[0] for arm in plan.arm_runs.values() for run in arm}

    def early(arm, run, update, iterate, k):
        return 0.1 * (update == first[run.id])

    def late(arm, run, update, iterate, k):
        return 0.1 * (update == run.updates) + 0.05 * (arm == "soma-n2")

    found = curves(plan, rows_of(plan, early, late)).set_index(["operations", "arm"])
    total = plan.config.products.charged.operations[-1]
    run = plan.arm_runs["soma-n2"][0]
    assert found.loc[(total, "soma-n2"), "updates"] == first[run.id]
    assert found.loc[(total, "spsa-n1-p8"), "difference"] == pytest.approx(-0.05)
    late_too = curves(plan, rows_of(plan, late, late)).set_index(["operations", "arm"])
    assert late_too.loc[(total, "soma-n2"), "updates"] == run.updates


def test_a_total_that_pays_for_nothing_is_an_error():
    plan = toy_plan()
    found = curves(plan, rows_of(plan, lambda *_: 0.0, lambda *_: 0.0))
    paid = found.groupby("operations")["arm"].count()
    assert paid.iloc[-1] == len(plan.config.products.charged.arms)
    poor = plan.config.products.charged.model_copy(update={"operations": (1e6,)})
    products = plan.config.products.model_copy(update={"charged": poor})
    plan = replace(plan, config=plan.config.model_copy(update={"products": products}))
    with pytest.raises(SomaError, match=r"raise products\.charged\.operations"):
        curves(plan, rows_of(plan, lambda *_: 0.0, lambda *_: 0.0))
