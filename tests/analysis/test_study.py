"""Statements of a configuration: differences with their signs, iterates and nearest experts, and their verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from soma.analysis import study
from soma.config.products import Study
from soma.report.paper import PaperValues
from soma.report.tables import statements
from tests.analysis.invented import ROOT, losses, toy_plan

EITHER = {"statement": "They are alike.", "falsified_by": "an interval without zero"}
STATED = {
    "better": {
        "statement": "Two experts are better than one model.",
        "falsified_by": "an interval above zero",
        "differences": [{"ours": {"arm": "soma-n2"}, "theirs": {"arm": "spsa-n1-p8"}}],
    },
    "alike": EITHER
    | {
        "zero": True,
        "differences": [
            {"ours": {"arm": "soma-n2", "iterate": "average"}, "theirs": {"arm": "soma-n2"}},
            {"ours": {"arm": "soma-n2"}, "theirs": {"arm": "soma-n2", "nearest": True}},
        ],
    },
}


def plan_of(**changed):
    plan = toy_plan()
    stated = {name: each | changed.get(name, {}) for name, each in STATED.items()}
    products = plan.config.products.model_copy(update={"study": Study.model_validate({"statements": stated})})
    return replace(plan, config=plan.config.model_copy(update={"products": products, "bootstrap_draws": 100}))


def known(arm, run, update, iterate, k):
    """Averages win 0.01, a second expert 0.03, SOMA 0.1; seeds differ a little."""
    better = 0.1 * (arm == "soma-n2") + 0.01 * (iterate == "average") + 0.03 * (k - 1)
    return better + 0.001 * run.seed * (1 + (arm == "soma-n2") + (iterate == "average"))


def test_differences_have_the_sign_and_the_sides_that_the_statement_names():
    plan = plan_of()
    rows = study.differences(plan, losses(plan, plan.config.products.study.arms, known))
    assert list(zip(rows["question"], rows["ours"], rows["theirs"], strict=True)) == [
        ("better", "soma-n2", "spsa-n1-p8"),
        ("alike", "soma-n2, averaged iterate", "soma-n2"),
        ("alike", "soma-n2", "soma-n2, nearest expert alone"),
    ]
    assert rows["difference"].to_numpy() == pytest.approx([-0.1305, -0.0105, -0.03], abs=1e-9)
    assert list(rows["seeds"]) == [2, 2, 2]
    run = plan.arm_runs["soma-n2"][0]
    assert set(rows["operations"]) == {run.operations(run.updates)}


@pytest.mark.parametrize(("shift", "better", "alike"), [(0.0, "held", "falsified"), (-0.4, "falsified", "falsified")])
def test_verdicts_follow_the_intervals(shift, better, alike):
    plan = plan_of()

    def shifted(arm, *where):
        return known(arm, *where) + shift * (arm == "soma-n2")

    rows = study.differences(plan, losses(plan, plan.config.products.study.arms, shifted))
    table = statements.study(plan, PaperValues(ROOT / "config/paper_values.yaml"), rows)
    at = table.columns.index("verdict")
    assert [row[at].text for row in table.rows] == [better, alike, "\u2033"]
    assert any("(alike: that they are zero)" in note for note in table.notes)


def test_what_differs_by_less_than_its_seeds_is_not_falsified():
    plan = plan_of()

    def noisy(arm, run, update, iterate, k):
        return 0.1 * (-1) ** run.seed * ((iterate == "average") + (k > 1))

    rows = study.differences(plan, losses(plan, plan.config.products.study.arms, noisy))
    alike = rows[rows["question"] == "alike"]
    assert statements.verdict_of(plan.config.products.study.statements["alike"], alike) == "not falsified"
