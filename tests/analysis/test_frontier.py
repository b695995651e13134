"""The frontier on invented losses with a known best size, a known law and a known advantage of ensembles."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest

from soma.analysis import frontier
from soma.analysis.frontier import lowest_point, power_law
from soma.catalogue import QUESTIONS
from soma.config.campaign import load, merge, read_yaml, resolve
from soma.errors import SomaError
from soma.plan import Plan, make_plan
from soma.report.tables.statements import verdict_of
from tests.analysis.invented import ROOT, losses

CONFIG = ROOT / "config"
GROWTH, SLOPE, LARGER = 0.3, -0.05, 1.5e14
"""Exponents of the best size and of the loss, and the budget of the larger runs."""


@cache
def plan_of(outcomes: bool = False) -> Plan:
    if not outcomes:
        plan = make_plan(load(CONFIG / "config.yaml", CONFIG / "frontier.yaml"))
    else:
        larger = {"recipe": "frontier", "operations": LARGER, "milestones": [1.0], "seeds": [0, 1, 2]}
        more = {
            "arms": {"large-d22": larger | {"width": 22}, "large-n2": larger | {"width": 28, "experts": 2}},
            "products": {"frontier": {"outcomes": {"monolith": "large-d22", "ensemble": "large-n2"}}},
        }
        values = merge(read_yaml(CONFIG / "config.yaml"), read_yaml(CONFIG / "frontier.yaml"))
        plan = make_plan(resolve(merge(values, more), where="a test"))
    return replace(plan, config=plan.config.model_copy(update={"bootstrap_draws": 200}))


def best_size(operations: float) -> float:
    return float(3e4 * (operations / 5e13) ** GROWTH)


def law(advantage: float = 0.0, seeds: float = 1e-3):
    """Return the nats by which a loss is below that of the text: a power law at the best size, more beside it.

    Args:
        advantage: nats by which ensembles on clusters are better, per decade above 1e12 operations.
        seeds: nats between two seeds, at most; another share of them for every size.
    """

    def found(arm, run, update, iterate, k):
        operations = float(run.operations(update))
        floor = 2.0 * (operations / 5e13) ** SLOPE
        beside = 0.01 * (np.log(run.parameters) - np.log(best_size(operations))) ** 2 if run.experts == 1 else 0.0
        ensemble = advantage * np.log10(operations / 1e12) * (run.experts > 1)
        ensemble -= 0.02 * (run.settings.partition == "random")
        return 2.5 - floor - beside + ensemble + seeds * run.seed * np.sin(run.parameters)

    return found


def rows_of(plan: Plan, on_test, on_validation=None) -> pd.DataFrame:
    arms = plan.config.products.frontier.arms
    return pd.concat([losses(plan, arms, on_validation or on_test, "validation"), losses(plan, arms, on_test, "test")])


def answers(plan: Plan, *laws) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    rows = rows_of(plan, *laws)
    found = frontier.points(plan, rows)
    return found, frontier.fits(plan, rows, found), frontier.differences(plan, rows, found)


def verdict(name: str, differences: pd.DataFrame) -> str:
    return verdict_of(QUESTIONS[name], differences[differences["question"] == name])


def test_a_parabola_has_its_lowest_point_inside_or_at_an_end():
    x = np.array([0.0, 1.0, 2.0, 4.0])
    inside, falling, arched = (x - 1.5) ** 2 + 3, -x, -((x - 1) ** 2)
    place, value, is_inside, misfit = lowest_point(x, np.stack([inside, falling, arched]))
    assert place == pytest.approx([1.5, 4, 4])
    assert value == pytest.approx([3, -4, -9])
    assert list(is_inside) == [True, False, False]
    assert misfit == pytest.approx([0, 0, 0], abs=1e-12)
    place, value, is_inside, _ = lowest_point(x[:2], np.array([[2.0, 1.0], [1.0, 2.0]]))
    assert (list(place), list(value), list(is_inside)) == ([1, 0], [1, 1], [False, False])


def test_a_power_law_goes_on():
    x = np.log([1.0, 2.0, 4.0])
    slope, there = power_law(x, np.stack([0.3 - 0.5 * x, 2 * x]), np.log(64.0))
    assert slope == pytest.approx([-0.5, 2])
    assert there == pytest.approx([0.3 - 0.5 * np.log(64), 2 * np.log(64)])


def test_the_best_size_its_growth_and_the_loss_at_a_larger_budget_are_found():
    _, fits, _ = answers(plan_of(), law())
    single = fits[fits["kind"] == "monolith"].set_index(["part", "operations"])
    for budget in plan_of().config.products.frontier.budgets:
        row = single.loc[("best size", budget)]
        assert row["value"] == pytest.approx(best_size(budget), rel=0.05)
        assert row["low"] <= row["value"] <= row["high"]
        assert row["inside"] == 1
    exponents = single[single.index.get_level_values("part") == "size exponent"]
    assert exponents["value"].iloc[0] == pytest.approx(GROWTH, abs=0.03)
    predicted = single.loc[("lowest loss", LARGER)]
    known = single.loc[("lowest loss", 5e13)]
    decline = np.log(predicted["value"] / known["value"]) / np.log(LARGER / 5e13)
    assert decline == pytest.approx(SLOPE, abs=0.01)
    assert predicted["extrapolated"]
    assert not known["extrapolated"]


def test_validation_chooses_and_test_is_reported():
    plan = plan_of()
    worst = plan.config.products.frontier.monoliths[-1]

    def misled(arm, run, update, iterate, k):
        return law()(arm, run, update, iterate, k) + 5.0 * (arm == worst)

    rows = rows_of(plan, law(), misled)
    found = frontier.points(plan, rows)
    budgets = len(plan.config.products.frontier.budgets)
    assert frontier.chosen_arms(found, "monolith") == [worst] * budgets
    again = frontier.points(plan, rows_of(plan, law(), law()))
    assert worst not in frontier.chosen_arms(again, "monolith")
    columns = ["arm", "operations", "loss"]
    pd.testing.assert_frame_equal(
        found[found["set"] == "test"][columns], again[again["set"] == "test"][columns], check_exact=True
    )


@pytest.mark.parametrize(("advantage", "expected"), [(0.1, "held"), (-0.1, "falsified")])
def test_the_ensembles_advantage_and_its_trend_have_the_sign_of_what_is_there(advantage, expected):
    plan = plan_of()
    _, _, differences = answers(plan, law(advantage))
    own = differences.set_index("question")
    assert len(own.loc["F1"]) == len(plan.config.products.frontier.budgets)
    assert own.loc["F2", "difference"] == pytest.approx(-advantage, rel=0.2)
    assert own.loc["F2", "unit"] == "nats per byte and decade"
    assert set(zip(own.loc["F3", "ours"], own.loc["F3", "theirs"], strict=True)) == {
        ("soma-n2-d16", "random-n2-d16"),
        ("soma-n4-d16", "random-n4-d16"),
        ("soma-n8-d10", "random-n8-d10"),
    }
    assert own.loc["F3", "difference"].to_numpy() == pytest.approx(-0.02, abs=1e-6)
    assert [verdict(name, differences) for name in ("F1", "F2", "F3", "F4")] == [expected, expected, "held", "held"]


def test_a_schedule_that_costs_nothing_is_told_from_one_that_does():
    plan = plan_of()

    def dearer(arm, run, update, iterate, k):
        return law()(arm, run, update, iterate, k) + 0.05 * (arm in plan.config.products.frontier.schedules.values())

    _, _, differences = answers(plan, dearer)
    own = differences[differences["question"] == "F6"]
    assert list(own["ours"]) == ["short-d16", "short-n2-d16"]
    assert own["difference"].to_numpy() == pytest.approx(-0.05, abs=2e-3)
    assert verdict("F6", differences) == "falsified"


@pytest.mark.parametrize(("surprise", "expected"), [(0.0, "not falsified"), (0.2, "falsified")])
def test_a_larger_run_is_held_against_what_was_predicted(surprise, expected):
    plan = plan_of(outcomes=True)
    outcomes = plan.config.products.frontier.outcomes

    def larger(arm, run, update, iterate, k):
        """The larger runs lie on the law itself, whatever their size, and differ by seed as the others."""
        if arm not in outcomes.values():
            return law(seeds=0.02)(arm, run, update, iterate, k)
        return 2.5 - 2.0 * (LARGER / 5e13) ** SLOPE + 0.02 * run.seed * np.sin(run.parameters) - surprise

    found, fits, differences = answers(plan, larger)
    own = differences[differences["question"] == "F5"]
    assert list(own["ours"]) == list(outcomes.values())
    predicted = fits[(fits["part"] == "lowest loss") & fits["extrapolated"]].set_index("kind")
    for row, (kind, arm) in zip(own.itertuples(), outcomes.items(), strict=True):
        measured = found[(found["arm"] == arm) & (found["set"] == "test")]["loss"].iloc[0]
        assert row.difference == pytest.approx(measured - predicted.loc[kind, "value"])
        width = predicted.loc[kind, "high"] - predicted.loc[kind, "low"]
        assert row.high - row.low > width
        assert row.seed_high - row.seed_low > width
    assert verdict("F5", differences) == expected


def test_a_budget_that_no_curve_covers_is_a_sentence():
    plan = plan_of()
    product = plan.config.products.frontier.model_copy(update={"budgets": (1e12, 1e13)})
    products = plan.config.products.model_copy(update={"frontier": product})
    plan = replace(plan, config=plan.config.model_copy(update={"products": products}))
    rows = rows_of(plan, law())
    with pytest.raises(SomaError, match=r"has no loss at 1e\+12 operations; choose budgets of products\.frontier"):
        frontier.curves(plan, frontier.scores_of(plan, rows[rows["set"] == "test"]), ["spsa-d16"], (1e12, 1e13))
