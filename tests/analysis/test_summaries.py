"""Controls, continuations, sweeps and searches on invented rows with known results."""

import numpy as np
import pandas as pd
import pytest

from soma.analysis import ablations, controls, gradients, inference, scaling, tuning
from soma.analysis.contrasts import Side, at_equal_cost, contrast, scores_of
from soma.errors import SomaError
from tests.analysis.invented import costs, losses, toy_plan

PLAN = toy_plan()
P = PLAN.config.products
FIXED = (*P.fixed_size.arms, *P.controls.arms)


def test_controls_say_which_side_is_better():
    better = {"soma-n2": 0.3, "soma-n2-random": 0.4, "spsa-n1-d16": 0.5}

    def advantage(arm, run, update, iterate, k):
        averaged = 0.05 if iterate == "average" else 0.0
        return better.get(arm, 0.0) + averaged - (0.1 if arm == "soma-n2" and k == 1 else 0.0)

    rows = controls.differences(PLAN, losses(PLAN, FIXED, advantage), costs(PLAN))
    found = {(r.control, r.ours, r.theirs): r for r in rows.itertuples()}
    assert found["B1", "soma-n2", "soma-n2-random"].difference == pytest.approx(0.1)
    assert found["B2", "soma-n2", "spsa-n1-d16"].difference == pytest.approx(0.2)
    averaged = ", averaged iterate"
    assert found["B3", f"soma-n2{averaged}", f"eggroll-n1{averaged}"].difference == pytest.approx(-0.3)
    assert found["B4", "soma-n2", "soma-n2, nearest expert alone"].difference == pytest.approx(-0.1)
    assert found["B4", "soma-n2, nearest expert alone", "spsa-n1-p8"].difference == pytest.approx(-0.2)
    assert {c for c, _, _ in found} == {"B1", "B2", "B3", "B4", "B5"}


def test_charging_the_seed_run_moves_the_budget_to_the_left():
    """Return losses that fall linearly with operations, so that interpolation is exact."""

    def advantage(arm, run, update, iterate, k):
        return run.operations(update) * 1e-12

    rows = losses(PLAN, FIXED, advantage)
    found = controls.differences(PLAN, rows, costs(PLAN)).set_index(["control", "ours"])
    seeds = {arm: PLAN.runs[PLAN.arm_runs[arm][0].start] for arm in ("soma-n2", "spsa-n1-p8")}
    seed = {arm: run.operations(run.updates) for arm, run in seeds.items()}
    # At the same total, the arm with the cheaper seed run has more operations left for its own updates.
    expected = (seed["soma-n2"] - seed["spsa-n1-p8"]) * 1e-12
    row = found.loc[("B5", "soma-n2, equal operations with the seed run")]
    assert row["difference"] == pytest.approx(expected, rel=1e-6)
    assert row["difference"] < 0


def test_nothing_is_compared_beyond_what_both_spent():
    rows = losses(PLAN, ("soma-n2", "spsa-n1-p8"), lambda *_: 0.0)
    spent = {"soma-n2": [1.0, 2.0, 3.0], "spsa-n1-p8": [4.0, 5.0, 6.0]}
    cost = {run.id: spent[arm] for arm in spent for run in PLAN.arm_runs[arm]}
    row = at_equal_cost(PLAN, scores_of(PLAN, rows), Side("soma-n2"), Side("spsa-n1-p8"), cost)
    assert row["seeds"] == 0
    assert np.isnan(row["difference"])


def test_arms_without_a_common_seed_are_not_compared():
    rows = losses(PLAN, ("soma-n2", "soma-n4"), lambda *_: 0.0)
    assert contrast(PLAN, scores_of(PLAN, rows), Side("soma-n2"), Side("soma-n4"))["seeds"] == 1
    PLAN.arms["soma-n4"] = PLAN.arms["soma-n4"].model_copy(update={"seeds": (7,)})
    try:
        with pytest.raises(SomaError, match="share no seed"):
            contrast(PLAN, scores_of(PLAN, rows), Side("soma-n2"), Side("soma-n4"))
    finally:
        PLAN.arms["soma-n4"] = PLAN.arms["soma-n4"].model_copy(update={"seeds": (0,)})


def history(drawn):
    return pd.DataFrame({"update": [10, 20], "expert": [0, 0], "data_sha256": drawn, "probes_sha256": ["p", "q"]})


@pytest.mark.parametrize("same", [True, False])
def test_pairing_is_checked_and_differences_taken_at_every_milestone(same):
    def advantage(arm, run, update, iterate, k):
        return (0.2 if arm == "pair-n4" else 0.01 if arm == "late-n4" else 0.0) * (update == run.updates)

    rows = losses(PLAN, P.paired.arms, advantage)
    histories = {run.id: history(["a", "b"]) for arm in P.paired.arms for run in PLAN.arm_runs[arm]}
    if not same:
        histories["pair-n4-summed-s1"] = history(["a", "c"])
    found = gradients.paired(PLAN, rows, histories)
    early = found[found["phase"] == "early"]
    assert list(early["difference"].round(9)) == [0.0, -0.2]
    assert set(early["paired"]) == {same}
    assert found.set_index("phase").loc["early minus late", "difference"] == pytest.approx(-0.19)


def test_the_base_of_an_ablation_stands_first_and_has_no_difference():
    found = ablations.ablation(PLAN, losses(PLAN, P.ablation.arms, lambda arm, *_: 0.1 * (arm == P.ablation.base)))
    assert found["arm"].iloc[0] == P.ablation.base
    assert np.isnan(found["difference"].iloc[0])
    assert np.allclose(found["difference"].iloc[1:], -0.1)
    split = scaling.allocation(PLAN, losses(PLAN, P.allocation.arms, lambda *_: 0.0))
    assert split["operations"].nunique() == 1


SWEPT = PLAN.groups["sweep"]


def falling(arm, run, update, iterate, k):
    """Return losses that fall with the number of experts at equal updates, but rise at equal operations."""
    return 0.01 * update + 0.02 * run.experts


def test_sweeps_compare_neighbours_at_equal_updates_and_ends_at_equal_operations():
    found = scaling.differences(PLAN, losses(PLAN, SWEPT, falling, "validation")).set_index(["axis", "larger"])
    assert found.loc[("experts", 2), "difference"] == pytest.approx(-0.02)
    # N = 1 has done four times the updates of N = 4 at the same operations.
    first = PLAN.arm_runs["sweep-n4"][0].milestones[0]
    assert found.loc[("aggregate", 4), "difference"] == pytest.approx(-(0.01 * 3 * first - 0.06))


def test_budgets_compare_only_allocations_whose_curves_cover_them():
    rows = losses(PLAN, SWEPT, falling, "validation")
    found = scaling.budgets(PLAN, rows)
    for row in found.itertuples():
        run = PLAN.arm_runs[row.arm][0]
        assert run.operations(run.milestones[0]) <= row.operations <= run.operations(run.updates) * 1.001
        updates = row.operations / run.operations(1)
        known = rows[(rows["run"] == run.id) & (rows["update"] == run.updates) & (rows["iterate"] == "last")]
        known = known[known["k"] == PLAN.arms[row.arm].active]
        end = known["nats"].sum() / known["bytes"].sum()
        assert row.loss == pytest.approx(end + 0.01 * (run.updates - updates), rel=1e-6)
    for _, group in found.groupby("operations"):
        assert group["best"].sum() == (len(group) > 1)


def longer_is_better(arm, run, update, iterate, k):
    """Return losses that depend on the work of an expert alone, and a little on their number."""
    each = run.operations(update) / run.experts
    return 1e-12 * each + 0.01 * np.log2(run.experts)


def test_numbers_of_experts_are_compared_at_equal_total_size_where_their_curves_cover_the_budgets():
    arms = scaling.fixed_total_arms(PLAN)
    assert arms == {1: "spsa-n1-p8", 2: "soma-n2", 4: "soma-n4"}
    rows = losses(PLAN, P.fixed_size.arms, longer_is_better, "validation")
    grid = scaling.best_counts(PLAN, rows)
    assert len(grid)
    spans = {}
    for n, arm in arms.items():
        run = PLAN.arm_runs[arm][0]
        spans[n] = float(run.operations(run.milestones[0])), float(run.operations(run.updates)) * 1.001
    for row in grid.itertuples():
        covering = [n for n, (low, high) in spans.items() if low <= min(row.total, n * row.per_expert) <= high]
        assert len(covering) > 1
        assert {row.best, row.second} <= set(covering)
        assert row.difference <= 0
    table = scaling.per_expert(PLAN, rows).set_index("experts")
    for n, row in table.iterrows():
        assert row["difference"] == pytest.approx(-0.01 * np.log2(n), abs=1e-6)
        ends = [PLAN.arm_runs[arm][0] for arm in (arms[1], arms[n])]
        assert row["operations"] == min(run.operations(run.updates) / run.experts for run in ends)


def test_crossing_times_are_where_the_line_between_two_milestones_meets_the_target():
    curves = pd.DataFrame(
        {
            "arm": ["a"] * 3 + ["b"] * 3, "update": [1, 2, 3] * 2, "loss": [3.0, 2.0, 2.5, 2.9, 2.8, 2.2],
            "operations": [10.0, 20.0, 30.0, 100.0, 200.0, 300.0], "device_seconds": [1.0, 2.0, 3.0] * 2,
            "elapsed_seconds": [1.0, 2.0, 3.0] * 2, "run": ["r"] * 3 + ["s"] * 3,
        }
    )  # fmt: skip
    found = scaling.crossings(PLAN, curves).set_index("arm")
    assert found["target"].iloc[0] == 2.2  # the worst of the lowest losses
    assert found.loc["a", "operations"] == pytest.approx(18.0)
    assert found.loc["b", "operations"] == pytest.approx(300.0)
    assert not found["bound"].any()
    early = scaling.crossings(PLAN, curves.assign(loss=[2.0, 2.0, 2.0, 2.9, 2.8, 2.2])).set_index("arm")
    assert early.loc["a", "bound"]
    assert early.loc["a", "operations"] == 10.0


def test_a_setting_that_failed_is_counted_and_not_chosen():
    def advantage(arm, run, update, iterate, k):
        return float("nan") if arm.endswith("p64-a0.3-s0.05-t32") else 0.1 + 0.1 * ("p256" in arm)

    found = tuning.search_populations(PLAN, losses(PLAN, PLAN.groups["populations"], advantage, "validation"))
    assert list(found["failed"]) == [1, 0, 0]
    assert list(found["chosen"]) == [False, False, True]
    assert list(found["edge"]) == ["", "", "population"]
    assert list(found["configured"]) == [True, False, False]
    with pytest.raises(SomaError, match="every setting of `eggroll-n1` that was tried failed"):
        tuning.search_populations(PLAN, losses(PLAN, PLAN.groups["populations"], lambda *_: float("nan"), "validation"))


def test_the_best_number_of_experts_is_found():
    rows = []
    for arm in P.active.arms:
        for run in PLAN.arm_runs[arm]:
            for k in range(1, run.experts + 1):
                loss = 3.0 - 0.1 * min(k, 3) + 0.05 * max(0, k - 3)
                rows += [(run.id, run.updates, k, d, 100, 100 * loss) for d in range(5)]
    table = pd.DataFrame(rows, columns=["run", "update", "k", "document", "bytes", "nats"]).assign(part="active")
    found = inference.active_losses(PLAN, table).set_index(["arm", "k"])["loss"]
    assert found.loc["soma-n4"].idxmin() == 3
    differences = inference.active_differences(PLAN, table).set_index(["arm", "against"])["difference"]
    assert differences.loc[("soma-n4", "k=1")] == pytest.approx(-0.15)
    assert differences.loc[("soma-n4", "half-way from k=1 to k=3")] == pytest.approx(-0.05)
