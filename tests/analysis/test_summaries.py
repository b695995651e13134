"""Controls, continuations, sweeps and searches on invented rows with known results."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from soma.analysis import ablations, controls, documents, gradients, inference, scaling
from soma.analysis.contrasts import Side, at_equal_cost, contrast, scores_of
from soma.config.campaign import load
from soma.errors import SomaError
from soma.models.count import operations_per_token
from soma.plan import make_plan
from tests.analysis.invented import ROOT, costs, losses, toy_plan

PLAN, SMALL = toy_plan(), make_plan(load(ROOT / "config/config.yaml"))
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
    # An ensemble of another width is compared with a monolith of another size, not of its expert's.
    assert found["B7", "soma-n4", "spsa-n1-d16"].difference == pytest.approx(0.5)
    assert {c for c, _, _ in found} == {"B1", "B2", "B3", "B4", "B5", "B7"}


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


def test_every_pair_of_continuations_is_compared():
    arms = P.allocation.arms
    rows = losses(PLAN, arms, lambda arm, *_: 0.004 * arms.index(arm))
    split = scaling.allocation(PLAN, rows)
    assert split["operations"].nunique() == 1
    pairs = split[split["difference"].notna()]
    assert len(split) - len(pairs) == len(arms)
    assert list(zip(pairs["arm"], pairs["other"], strict=True)) == list(itertools.combinations(arms, 2))
    assert pairs["difference"].iloc[0] == pytest.approx(0.004)
    assert [d.mean for d in scaling.equal_continuations(PLAN, split)] == pytest.approx(
        [abs(d) - 0.00006 for d in pairs["difference"]]
    )


def test_curves_of_ablations_are_of_expert_validation_and_say_when_the_order_turns():
    base, arm = P.ablation.base, P.ablation.start[0]
    histories = {}
    for name in P.ablation.arms:
        for run in PLAN.arm_runs[name]:
            falls = {10: 2.5, 20: 2.3, 30: 2.0} if name == arm else {10: 2.4, 20: 2.2, 30: 2.1}
            histories[run.id] = pd.DataFrame(
                [{"update": u, "expert": e, "expert_validation": v + 0.2 * e} for u, v in falls.items() for e in (0, 1)]
            )
    found = ablations.curves(PLAN, histories)
    assert list(found.loc[found["arm"] == base, "loss"])[:3] == pytest.approx([2.5, 2.3, 2.2])
    turn = ablations.overtaken(PLAN, found, arm).iloc[0]
    assert (turn["first"], turn["last"], turn["update"]) == pytest.approx((-0.1, 0.1, 25.0))
    assert ablations.overtaken(PLAN, found, P.ablation.head[0])["update"].isna().all()


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
    assert found["target"].iloc[0] == 2.2  # of two, the higher one
    assert found.loc["a", "operations"] == pytest.approx(18.0)
    assert found.loc["b", "operations"] == pytest.approx(300.0)
    assert not found["bound"].any()
    early = scaling.crossings(PLAN, curves.assign(loss=[2.0, 2.0, 2.0, 2.9, 2.8, 2.2])).set_index("arm")
    assert early.loc["a", "bound"]
    assert early.loc["a", "operations"] == 10.0
    assert found.loc["a", "first_operations"] == 20.0
    three = pd.concat([curves, curves[curves["arm"] == "b"].assign(arm="c", run="t", loss=[3.0, 2.9, 2.8])])
    missed = scaling.crossings(PLAN, three).set_index("arm")
    assert missed["target"].iloc[0] == 2.2  # the median
    assert list(missed["reached"]) == [True, True, False]
    assert np.isnan(missed.loc["c", "operations"])


def active_rows(plan) -> pd.DataFrame:
    """Losses that fall up to three active experts, and rise from there."""
    rows = []
    for arm in plan.config.products.active.arms:
        for run in plan.arm_runs[arm]:
            for k in range(1, run.experts + 1):
                loss = 3.0 - 0.1 * min(k, 3) + 0.05 * max(0, k - 3)
                rows += [(run.id, run.updates, k, d, 100, 100 * loss) for d in range(5)]
    return pd.DataFrame(rows, columns=["run", "update", "k", "document", "bytes", "nats"]).assign(part="active")


def test_the_best_number_of_experts_is_found():
    found = inference.active_losses(PLAN, active_rows(PLAN)).set_index(["arm", "k"])["loss"]
    assert found.loc["soma-n4"].idxmin() == 3
    differences = inference.active_differences(PLAN, active_rows(PLAN)).set_index(["arm", "k", "against"])["difference"]
    assert differences.loc[("soma-n4", "k=4", "k=1")] == pytest.approx(-0.15)
    assert set(differences.index.get_level_values("against")) == {"k=1"}  # k=4 is all of them


def test_four_active_experts_are_compared_with_a_best_k_of_other_documents():
    rows = active_rows(SMALL)
    found = inference.active_differences(SMALL, rows).set_index(["arm", "k", "against"])["difference"]
    half_way = "half-way from k=1 to the best k"
    assert found.loc[("soma-n16", "k=4", half_way)] == pytest.approx(2.75 - (2.9 + 2.7) / 2)
    assert found.loc[("soma-n16", "best k", "all 16")] == pytest.approx(2.7 - 3.35)
    assert sorted(found.loc["soma-n8"].index) == [("k=4", half_way), ("k=4", "k=1")]
    assert [*found.loc["soma-n4"].index] == [("k=4", "k=1")]
    # Even documents prefer k = 2 and odd ones k = 6 by as much: each half then chooses the other's.
    for parity, k in ((0, 2), (1, 6)):
        rows.loc[(rows["document"] % 2 == parity) & (rows["k"] == k), "nats"] -= 200
    found = inference.active_differences(SMALL, rows).set_index(["arm", "k", "against"])["difference"]
    assert found.loc[("soma-n16", "best k", "all 16")] == pytest.approx((3 * 2.85 + 2 * 2.8) / 5 - 3.35)


def test_pairs_of_similar_correlation_are_averaged_in_even_groups():
    generator = np.random.default_rng(0)
    frames = []
    for run, experts in (("a", 5), ("b", 16), ("c", 40)):
        count = experts * (experts - 1) // 2
        alike = generator.normal(size=count)
        frames.append(pd.DataFrame({"run": run, "experts": experts, "first": range(count), "second": 0,
                                    "correlation": alike, "gain": 1 - alike, "part": "pairs"}))  # fmt: skip
    found = inference.pair_groups(PLAN, pd.concat(frames))
    assert found.groupby("run")["pairs"].agg(list).to_dict() == {
        "a": [10], "b": [10] * 12, "c": [32] * 5 + [31] * 20
    }  # fmt: skip
    assert np.allclose(found["gain"], 1 - found["correlation"])
    for _, own in found.groupby("run"):
        assert own["correlation"].is_monotonic_increasing
    assert inference.pair_groups(PLAN, pd.DataFrame({"part": ["active"], "run": ["r"]})).empty


def by_operations(arm, run, update, iterate, k):
    """Losses that fall linearly with operations, so that interpolation is exact; averages and one expert are better."""
    return run.operations(update) * 1e-12 + 1.0 * (iterate == "average" or k != PLAN.arms[arm].active)


def test_the_many_are_also_compared_where_they_trained_as_long_as_the_few():
    arms, (many, few) = P.inference.arms, (PLAN.arm_runs[arm][0] for arm in (P.inference.many, P.inference.few))
    rows = losses(PLAN, arms, by_operations)
    plain = inference.serving(PLAN, rows, timed(PLAN, {few.id: 2.0}))
    assert list(plain["arm"]) == [*arms]  # each expert of the few takes longest
    assert list(plain["update"]) == [PLAN.arm_runs[arm][0].updates for arm in arms]
    assert plain["token_operations"].iloc[0] == operations_per_token(PLAN.arm_runs[arms[0]][0].model)
    assert plain["token_operations"].iloc[-1] == 4 * operations_per_token(many.model)
    slow = inference.serving(PLAN, rows, timed(PLAN, {many.id: 2.0}))
    assert list(slow["arm"]) == [*arms, P.inference.many]
    earlier, end = slow[slow["arm"] == P.inference.many].itertuples()
    assert earlier.update == many.milestones[1]  # half of the updates, at twice the time of each
    assert (earlier.update, end.update) == many.milestones[1:]
    for row in (earlier, end):
        gap = few.operations(few.updates) - many.operations(row.update)
        assert row.difference == pytest.approx(gap * 1e-12)
        assert row.seeds == 1


def timed(plan, slower) -> pd.DataFrame:
    """Costs at which every run takes one second of elapsed time for its whole budget, or another multiple."""
    return pd.DataFrame(
        {"arm": arm, "run": run.id, "update": u, "quantity": "idealised elapsed time",
         "value": slower.get(run.id, 1.0) * u / run.updates}
        for arm in P.inference.arms for run in plan.arm_runs[arm] for u in run.milestones
    )  # fmt: skip


def test_all_arms_are_compared_after_the_same_device_time():
    rows, spent = losses(PLAN, P.inference.arms, by_operations), costs(PLAN, seconds_per_operation=1e-11)
    found = inference.at_one_cost(PLAN, rows, spent)
    assert list(found["arm"]) == [*P.inference.arms]
    least = min(run.operations(run.updates) for arm in P.inference.arms for run in PLAN.arm_runs[arm])
    assert np.allclose(found["device_seconds"], least * 1e-11)
    assert np.allclose(found["loss"], found["loss"].iloc[0])  # the same operations, so the same loss
    assert found["seeds"].min() == 1
    product = P.inference.model_copy(update={"device_seconds": 2 * least * 1e-11})
    products = P.model_copy(update={"inference": product})
    plan = replace(PLAN, config=PLAN.config.model_copy(update={"products": products}))
    beyond = inference.at_one_cost(plan, rows, spent)
    assert beyond["loss"].isna().all()
    assert (beyond["seeds"] == 0).all()


def test_documents_are_won_only_in_every_seed_and_sources_are_resampled_whole():
    arms = (*P.fixed_size.arms, *P.paired.arms)
    rows = losses(PLAN, arms, lambda arm, run, *_: 0.5 * (arm == "soma-n2"))
    other = PLAN.arm_runs["pair-n4"][1].id
    first, last = rows["document"] < 3, rows["iterate"] == "last"
    rows.loc[(rows["run"] == other) & first, "nats"] += 1.0  # lost in one seed
    rows.loc[(rows["run"] == PLAN.arm_runs["pair-n4"][0].id) & ~first & last, "nats"] -= 1.0
    rows.loc[(rows["run"] == other) & ~first & last, "nats"] -= 1.0
    rows["group"] = "g" + (rows["document"] // 2).astype(str)
    rows["host"] = "h" + rows["document"].astype(str)
    found = documents.compare(PLAN, rows).set_index(["comparison", "theirs"])
    won = found["won"]
    assert (won.loc["equal total size"] == 12).all()
    assert won.loc[("paired, early", "pair-n4-summed")] == 9
    early = found.loc[("paired, early", "pair-n4-summed")]
    assert (early["documents"], early["group_count"], early["host_count"]) == (12, 6, 12)
    assert np.isnan([early["group_low"], early["group_high"]]).all()  # six groups are too few
    assert early["host_low"] == pytest.approx(early["low"])  # a host for each document
    rows["host"] = "h" + (rows["document"] % 8).astype(str)
    whole = documents.compare(PLAN, rows).set_index(["comparison", "theirs"])
    assert whole.loc[("paired, early", "pair-n4-summed"), "host_count"] == 8
    assert whole.loc[("paired, early", "pair-n4-summed"), "host_low"] != pytest.approx(early["low"])
    nameless = documents.compare(PLAN, rows.assign(host=rows["host"].where(rows["document"] > 0, "")))
    assert (nameless["host_count"] == 0).all()
    assert nameless["host_low"].isna().all()
