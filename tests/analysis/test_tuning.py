"""The equal search (Tables 6 and 7, claim C3) on invented losses with known results, and a check that it is equal."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from soma.analysis import tuning
from soma.config.campaign import load
from soma.errors import SomaError
from soma.evaluation.rows import COLUMNS
from soma.files.atomic import read_json, write_json
from soma.plan import make_plan
from soma.steps.choose import choose
from soma.workflow.settings import settings_files
from tests.analysis.invented import ROOT, losses, toy_plan

PLAN = make_plan(load(ROOT / "config/config.yaml"))
T = PLAN.config.products.tuning
SOMA, SPSA = ([*T.variants(base)] for base in T.bases)
"""Names of the settings' arms, in the order of the configuration."""


def rows(advantage, arms=PLAN.groups["tuning"], set_="validation"):
    """Return losses lower by `advantage(arm, run)`; averages and other k, which must not be read, are better."""

    def better(arm, run, update, iterate, k):
        return advantage(arm, run) if iterate == "last" and k == PLAN.arms[arm].active else 1.0

    return losses(PLAN, arms, better, set_)


def search(advantage):
    return tuning.search(PLAN, rows(advantage))


def chosen(found):
    return [*found.loc[found["chosen"], "arm"]]


def favour(*arms):
    """Make the named settings best by 0.1; seeds differ by 0.01."""
    return lambda arm, run: 0.1 * (arm in arms) - 0.01 * run.seed


@pytest.mark.parametrize(
    ("lr", "eps", "edge"),
    [(1.25e-3, 1.25e-3, ""), (6.25e-4, 1.25e-3, "lr"), (5e-3, 1.25e-3, "lr"), (1.25e-3, 2.5e-3, "eps")],
)
def test_the_best_setting_is_chosen_and_an_edge_of_the_grid_is_flagged(lr, eps, edge):
    place = T.settings.index((lr, eps))
    found = search(favour(SOMA[place], SPSA[0]))
    assert chosen(found) == [SOMA[place], SPSA[0]]
    own = found[found["base"] == T.soma].reset_index()
    assert list(zip(own["lr"], own["eps"], strict=True)) == list(T.settings)
    best = own.loc[place]
    assert best["edge"] == edge
    assert set(found.loc[~found["chosen"], "edge"]) == {""}
    assert best["loss"] == pytest.approx(own["loss"].drop(place).mean() - 0.1)
    assert np.allclose(found["sd"], 0.01)  # for seeds 0, 1, 2
    assert (found["failed"] == 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")], ids=["not a number", "infinite"])
def test_a_failed_run_is_counted_and_its_setting_never_chosen(bad):
    def advantage(arm, run):
        return bad if (arm, run.seed) == (SOMA[1], 2) else favour(SOMA[1], SPSA[1])(arm, run) + 0.05 * (arm == SOMA[4])

    found = search(advantage).set_index("arm")
    assert found.loc[SOMA[1], "failed"] == 1
    assert found["failed"].sum() == 1
    assert np.isnan(found.loc[SOMA[1], "loss"])
    assert chosen(found.reset_index()) == [SOMA[4], SPSA[1]]


def test_a_search_without_a_setting_that_worked_is_one_sentence():
    with pytest.raises(SomaError) as caught:
        search(lambda arm, run: float("nan") if arm in SPSA else 0.0)
    advice = "lower the rates or steps that are tried."
    assert str(caught.value) == f"every setting of `{T.spsa}` that was tried failed; {advice}"


def test_every_seed_of_both_chosen_settings_is_compared():
    found = search(favour(SOMA[2], SPSA[3]))
    runs = [f"{name}-s{seed}" for name in (SOMA[2], SPSA[3]) for seed in T.seeds]
    tested = rows(lambda arm, run: (0.3 + 0.1 * run.seed) * (arm == SOMA[2]), (SOMA[2], SPSA[3]), "test")
    compared = tuning.compare(PLAN, found, tested)
    by_seed, mean = compared[:-1], compared.iloc[-1]
    assert list(by_seed["seed"]) == list(T.seeds)
    assert np.allclose(compared["difference"], [-0.3, -0.4, -0.5, -0.4])  # SOMA minus SPSA
    assert np.allclose(compared["soma"] - compared["spsa"], compared["difference"])
    assert [*by_seed["soma_run"], *by_seed["spsa_run"]] == runs
    assert np.isnan(mean["seed"])
    assert mean["run"].split() == [*by_seed["spsa_run"], *by_seed["soma_run"]]
    assert mean["low"] == pytest.approx(mean["high"])  # the same advantage on every document
    assert by_seed["seed_low"].isna().all()
    assert mean["seed_low"] == pytest.approx(-0.4 - 4.302653 * 0.1 / 3**0.5)


def test_what_is_tested_is_every_seed_of_what_the_table_calls_chosen_and_nothing_else(tmp_path):
    for arms in ((SOMA[0], SPSA[5]), (SOMA[3], SPSA[3]), ()):  # in the last case all are equal: the first wins
        validation = rows(favour(*arms))
        validation.to_parquet(tmp_path / "tuning.parquet")
        write_json(tmp_path / "settings.json", settings_files(PLAN)["choose"])
        choose(tmp_path / "settings.json", tmp_path / "tuning.parquet", tmp_path / "chosen.json")
        entries = {entry["run"]["id"]: entry for entry in read_json(tmp_path / "chosen.json")}
        named = chosen(tuning.search(PLAN, validation))
        runs = [(run, arm) for arm in named for run in PLAN.arm_runs[arm]]
        assert sorted(entries) == sorted(run.id for run, _ in runs)
        assert all(entries[run.id] == PLAN.published(run) | {"active": [run.experts]} for run, _ in runs)
        assert not arms or sorted(named) == sorted(arms)


def test_each_seed_may_choose_for_itself(tmp_path):
    """As in the paper; the seeds that chose a setting stand in its row, and their runs alone are tested."""
    product = T.model_copy(update={"each_seed": True})
    plan = replace(
        PLAN,
        config=PLAN.config.model_copy(update={"products": PLAN.config.products.model_copy(update={"tuning": product})}),
    )
    best = {0: SOMA[1], 1: SOMA[4], 2: SOMA[1]}
    validation = rows(lambda arm, run: 0.1 * (arm in (best[run.seed], SPSA[2])) + 0.01 * (arm == SOMA[0]))
    found = tuning.search(plan, validation)
    assert chosen(found) == [SOMA[1], SOMA[4], SPSA[2]]
    assert found.set_index("arm").loc[[SOMA[1], SOMA[4], SPSA[2], SOMA[0]], "chosen_by"].tolist() == [
        "0 2",
        "1",
        "0 1 2",
        "",
    ]
    tested = rows(lambda arm, run: 0.3 * (arm == best[run.seed]), (SOMA[1], SOMA[4], SPSA[2]), "test")
    compared = tuning.compare(plan, found, tested)
    assert compared["soma_run"].tolist()[:3] == [f"{best[seed]}-s{seed}" for seed in T.seeds]
    assert np.allclose(compared["difference"], -0.3)
    validation.to_parquet(tmp_path / "tuning.parquet")
    write_json(tmp_path / "settings.json", settings_files(plan)["choose"])
    choose(tmp_path / "settings.json", tmp_path / "tuning.parquet", tmp_path / "chosen.json")
    named = [entry["run"]["id"] for entry in read_json(tmp_path / "chosen.json")]
    assert sorted(named) == sorted([f"{best[s]}-s{s}" for s in T.seeds] + [f"{SPSA[2]}-s{s}" for s in T.seeds])
    with pytest.raises(SomaError, match="every setting of"):
        tuning.search(plan, rows(lambda arm, run: float("nan") if run.seed == 1 else 0.0))


@pytest.mark.parametrize("overlay", [None, "toy.yaml", "paper.yaml"])
def test_every_setting_has_the_same_seeds_and_operations(overlay):
    plan = make_plan(load(ROOT / "config/config.yaml", *([ROOT / "config" / overlay] if overlay else [])))
    product = plan.config.products.tuning
    spent = []
    for base in product.bases:
        names = [*product.variants(base)]
        assert len(names) == len(set(product.settings))
        runs = [run for name in names for run in plan.arm_runs[name]]
        assert [run.seed for run in runs] == [*product.seeds] * len(names)
        same = {run.settings.model_copy(update={"lr": 0.0, "eps": 0.0}).model_dump_json() for run in runs}
        assert len(same) == 1  # only lr and eps differ
        assert len({(run.updates, run.operations(run.updates)) for run in runs}) == 1
        spent.append((runs[0].operations(runs[0].updates), runs[0].operations(1)))
    (ours, step), (theirs, other_step) = spent
    if overlay == "paper.yaml":  # the paper's lengths, equal in GPU-hours there
        assert ours / theirs == pytest.approx(0.88, abs=0.01)
    else:
        assert abs(ours - theirs) < max(step, other_step)  # equal up to one update


def test_a_width_stands_at_its_lowest_milestone():
    plan = toy_plan()
    (arm,) = plan.groups["widths"]
    (run,) = plan.arm_runs[arm]

    def advantage(arm, run, update, iterate, k):
        return 0.1 if (update, iterate) == (run.milestones[1], "last") else 0.5 * (iterate == "average")

    (row,) = tuning.search_widths(plan, losses(plan, [arm], advantage, "validation")).itertuples()
    assert (row.width, row.updates, row.update) == (15, run.updates, run.milestones[1])
    assert row.operations == run.operations(run.milestones[1])
    assert np.isnan(row.seed_low)
    assert tuning.search_widths(PLAN, pd.DataFrame(columns=list(COLUMNS))).empty  # none is trained
