"""Searches for rates, and which arms have what they chose, on invented losses with known results."""

import numpy as np
import pytest

from soma.analysis import rates, tuning
from soma.config.campaign import load, merge, read_yaml, resolve
from soma.plan import make_plan
from tests.analysis.invented import ROOT, losses, toy_plan

PLAN = make_plan(load(ROOT / "config/config.yaml"))
SEARCH = PLAN.config.products.rates["eggroll"]
NAMES = [*SEARCH.variants]
GIVEN = {"arm": "eggroll-n1", "serves": ["eggroll-n1"]}


def changed(change):
    return make_plan(resolve(merge(read_yaml(ROOT / "config/config.yaml"), change)))


def searched(plan, best, failed=()):
    """Return the search in which the arms that contain `best` are best by 0.1, and those of `failed` have no loss."""

    def advantage(arm, *_):
        return float("nan") if arm in failed else 0.1 * (best in arm)

    return rates.search(plan, losses(plan, plan.product_arms("rates"), advantage, "validation"))


def tuned(plan, best="lr0.0025-eps0.00125"):
    return tuning.search(plan, losses(plan, plan.groups["tuning"], lambda arm, *_: 0.1 * (best in arm), "validation"))


def of_arms(plan, best="p512"):
    return rates.of_arms(plan, searched(plan, best), tuned(plan))


def test_the_shipped_runs_of_the_search_keep_their_names():
    assert NAMES[:2] == ["eggroll-n1-p128-a0.3-s0.05-t32", "eggroll-n1-p256-a0.3-s0.05-t32"]
    assert NAMES[-1] == "eggroll-n1-p4096-a0.1-s0.05-t100"
    assert all(run.may_fail for name in NAMES for run in PLAN.arm_runs[name])


def test_a_setting_that_failed_is_counted_and_not_chosen_and_edges_are_named():
    found = searched(PLAN, "p128", failed=[NAMES[0]]).set_index("arm")
    assert found.loc[NAMES[0], "failed"] == 1
    assert not found.loc[NAMES[0], "chosen"]
    (best,) = searched(PLAN, "p128")[lambda rows: rows["chosen"]].itertuples()
    assert best.arm == NAMES[0]
    assert best.edge == "population and tokens and alpha"  # but not step, of which one value was tried
    assert best.share == pytest.approx(0.02, rel=0.02)


def test_a_search_whose_settings_all_failed_chooses_nothing_and_its_arm_says_so():
    found = searched(PLAN, "", failed=NAMES)
    assert not found["chosen"].any()
    own = rates.of_arms(PLAN, found, tuned(PLAN)).set_index(["arm", "key"])
    assert own.loc[("eggroll-n1", "alpha"), "reason"] == "every setting of its search failed"


def test_every_fault_in_the_choice_of_an_arms_rates_is_named():
    rows = of_arms(PLAN).set_index(["arm", "key"])
    assert rows.loc[("soma-n2", "lr"), "reason"] == ""
    assert rows.loc[("soma-n2", "lr"), ["search", "chosen"]].tolist() == ["Table 6, tune-n2", "0.0025"]
    assert rows.loc[("soma-n2", "lr"), "share"] == pytest.approx(0.3, rel=0.01)
    assert rows.loc[("soma-n2", "head_lr"), "reason"] == "no search serves this arm"
    assert rows.loc[("bptt-n1", "lr"), "reason"] == "no search serves this arm"
    reason = rows.loc[("eggroll-n1", "population"), "reason"]
    assert reason == "the search ran on 2 % of the arm's budget, less than 20 %; the arm has 256, chosen was 512"
    assert rows.loc[("eggroll-n1", "step"), "reason"].endswith("less than 20 %; only one value was tried")
    assert rows.loc[("eggroll-n1", "sigma"), "reason"] == "no search serves this arm"
    assert ("eggroll-n1", "lr") not in rows.index  # it has none
    assert ("soma-n16", "head_lr") not in rows.index  # its head is frozen
    assert ("sweep", "lr") in rows.index


def test_a_fair_search_leaves_nothing_to_say_until_the_configuration_differs():
    three = [
        {"eggroll": {"population": 256 * 2**i, "sigma": 0.0625 * 2**i, "alpha": 0.3 + 0.2 * i, "step": 0.05 * 2**i}}
        for i in (-1, 0, 1)
    ]
    change = {"products": {"rates": {"eggroll": {**GIVEN, "settings": three, "operations": 1.0e13}}}}
    assert "eggroll-n1" in rates.reasons(of_arms(changed(change), "a0.5"))  # an edge, and not what the arm has
    assert "eggroll-n1" not in rates.reasons(of_arms(changed(change), "a0.3"))
    other = merge(change, {"arms": {"eggroll-n1": {"eggroll": {"alpha": 0.5}}}})
    said = rates.reasons(of_arms(changed(other), "a0.3"))["eggroll-n1"]
    assert said == "alpha: the arm has 0.5, chosen was 0.3"


def test_keys_with_the_same_fault_are_named_together():
    assert "lr, head_lr: no search serves this arm" in rates.reasons(of_arms(PLAN))["bptt-n1"]


def test_rates_that_are_given_are_no_fault():
    rows = of_arms(changed({"rates_given": "the paper's own"}))
    assert (rows["reason"] == "").all()
    assert rates.reasons(rows) == {}


def test_a_campaign_without_searches_has_rows_for_its_arms():
    plan = changed({"products": {"rates": {}}})
    found = rates.search(plan, losses(plan, ["soma-n2"], lambda *_: 0.0, "validation"))
    assert found.empty
    assert rates.reasons(rates.of_arms(plan, found, tuned(plan)))["eggroll-n1"].endswith("no search serves this arm")


def test_a_schedule_is_a_setting_too():
    plan = toy_plan()
    found = searched(plan, "ah0.1").set_index("arm")
    (arm,) = (name for name in found.index if "ah0.1" in name)
    assert plan.arm_runs[arm][0].settings.eggroll.alpha_halved_at == 0.1
    constant = plan.arm_runs["eggroll-n1-p64-a0.3"][0].settings.eggroll
    assert constant.alpha_halved_at is None
    assert (found.loc[found["base"] == "eggroll-n1", "share"] > rates.FAIR_SHARE * 0.9).all()
    assert np.isclose(found.loc[arm, "operations"], 1.6e10, rtol=0.1)
