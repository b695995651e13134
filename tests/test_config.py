import copy
from pathlib import Path

import pytest

from soma.config.campaign import load, merge, read_yaml, resolve
from soma.config.docs import readme, schema
from soma.errors import SomaError
from soma.plan import make_plan
from soma.runs import RunSpec
from soma.workflow.settings import settings_files

ROOT = Path(__file__).parent.parent
BASE = ROOT / "config/config.yaml"


STATEMENT = {"statement": "They differ.", "falsified_by": "an interval above zero"}
SIDES = {"ours": {"arm": "soma-n2"}, "theirs": {"arm": "soma-n3"}}
FRONTIER = {
    "monoliths": ["spsa-n1-d16", "spsa-n1-p16"],
    "ensembles": ["soma-n2"],
    "budgets": [1e12, 2e12],
    "larger": 1e13,
}
SEARCH = {"arm": "eggroll-n1", "serves": ["eggroll-n1"], "operations": 1e12, "settings": [{"lr": 1e-3}]}


def small() -> dict:
    return copy.deepcopy(read_yaml(BASE))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeed": 1}, "unknown key `seeed`"),
        ({"data": {"windw": 3}}, r"unknown key `data\.windw`"),
        ({"training": {"n_pert": "many"}}, r"`training\.n_pert` is 'many'"),
        ({"arms": {"soma-n2": {"n_prt": 3}}}, r"unknown key `arms\.soma-n2\.n_prt`"),
        ({"arms": {"soma-n2": {"k": 3}}}, r"k \(3\) must not be larger than the number of experts \(2\)"),
        ({"arms": {"soma-n2": {"recipe": "wide"}}}, r"arms\.soma-n2\.recipe is `wide`, which `recipes` does not"),
        ({"arms": {"soma-n2": {"updates": 5}}}, "as `updates` or as `operations`, not both"),
        ({"arms": {"soma-n2": {"operations": None}}}, "give the budget"),
        ({"arms": {"soma-n2": {"milestones": [0.5]}}}, "milestones must increase and end with 1"),
        ({"arms": {"soma-n2": {"lr": -1}}}, r"`arms\.soma-n2\.lr` is -1"),
        ({"arms": {"soma-n2": None}}, "names the arm `soma-n2`, which `arms` does not define"),
        ({"data": {"prefix": 512}}, r"window \(512 bytes\) must be longer than the routed prefix \(512 bytes\)"),
        ({"training": {"crop": 1024}}, r"crop \(1024 bytes\) must not exceed data\.window \(512\)"),
        ({"data": {"test": {"at": 2}}}, r"validation\.at and test\.at must differ"),
        ({"data": {"test": {"every": 9}}}, r"validation\.every and test\.every must be equal"),
        ({"data": {"train": {"source": "web"}}}, r"`data\.train`"),
        ({"campaign": "../escape"}, "`campaign` is '../escape'"),
        ({"training": {"lr": float("nan")}}, r"`training\.lr`"),
        ({"training": {"batch": True}}, r"^[^;]*training: `batch` is true, which is no number or text$"),
        ({"training": {"eps": -1}}, r"^[^;]*`training\.eps` is -1: [^;]*$"),  # not once more for every arm
        ({"arms": {"soma-n2": {"seeds": [0, 1, 0]}}}, r"soma-n2\.seeds: the seed 0 is given twice"),
        ({"products": {"tuning": {"seeds": [2, 2]}}}, r"tuning\.seeds: the seed 2 is given twice"),
        ({"arms": {"soma-n2": {"experts": 100_000_000}}}, r"`arms\.soma-n2\.experts` is 100000000"),
        ({"arms": {"soma-n2": {"label": "two\nlines"}}}, r"soma-n2\.label: the text holds a line break"),
        (
            {"arms": {"soma-n2": {"label": "nul\0"}}},
            r"soma-n2\.label: the text holds a line break, a control character",
        ),
        ({"data": {"train": {"source": "text", "path": "a\0b"}}}, "path: the text holds"),
        ({"arms": {"soma-n2": {"milestones": []}}}, r"`arms\.soma-n2\.milestones` is \[\]"),
        ({"compute": {"device": "gpu"}}, r"`compute\.device` is 'gpu'"),
        ({"arms": {"late-n4": {"start": "nowhere"}}}, r"arms\.late-n4\.start is `nowhere`"),
        ({"arms": {"late-n4": {"width": 8}}}, r"arms\.late-n4 continues `long-n4`, so its `width` must be the same"),
        ({"arms": {"late-n4": {"start": "split-n64-b16"}}}, "which is itself a continuation"),
        ({"arms": {"late-n4": {"experts": 8}}}, "late-n4 has 8 experts and continues `long-n4`, which has 4"),
        ({"products": {"variance": {"arms": ["bptt-n1"]}}}, "trains by another method"),
        ({"products": {"variance": {"n_pert": [3]}}}, r"every n_pert must divide probes \(128\)"),
        ({"products": {"active": {"arms": ["soma-n2"], "pairs": "soma-n2"}}}, "fewer than three experts"),
        ({"products": {"sweep": {"batch": [24]}}}, r"holds 24, which is not a multiple of the arm's 16"),
        (
            {"products": {"sweep": {"experts": [10**8]}}},
            r"^the configuration: `products\.sweep\.experts\.0` is 1\d*: [^;]+$",
        ),
        ({"training": {"eggroll": {"step_halved_at": "never"}}}, r"`training\.eggroll\.step_halved_at"),
        ({"products": {"rates": {"eggroll": SEARCH | {"arm": "none"}}}}, "products names the arm `none`"),
        (
            {"products": {"rates": {"eggroll": SEARCH | {"serves": ["none"]}}}},
            r"products\.rates\.eggroll\.serves names the arm `none`",
        ),
        ({"products": {"tuning": {"serves": {"soma-n2": ["soma-n4"]}}}}, "`soma-n2`, which is neither soma nor spsa"),
        (
            {"products": {"rates": {"eggroll": SEARCH | {"settings": [{"lr": 1e-3}, {"eps": 1e-3}]}}}},
            "must state the same keys",
        ),
        ({"products": {"rates": {"eggroll": SEARCH | {"settings": [{"seeds": [0]}]}}}}, "must not state `seeds`"),
        ({"products": {"rates": {"eggroll": SEARCH | {"settings": [{"rate": 1}]}}}}, "eggroll: unknown key `rate`"),
        (
            {"products": {"rates": {"eggroll": SEARCH | {"settings": [{"eggroll": {"population": 3}}]}}}},
            "a whole number of pairs",
        ),
        (
            {"products": {"rates": {"eggroll": SEARCH | {"settings": [{"lr": 1e-3}, {"lr": 1e-3}]}}}},
            "a setting is stated twice",
        ),
        ({"products": {"horizon": {"arms": ["eggroll-n1"]}}}, r"products\.horizon\.arms names `eggroll-n1`"),
        ({"products": {"combiner": {"arms": ["spsa-n1-p16"]}}}, r"products\.combiner\.arms names `spsa-n1-p16`"),
        ({"products": {"horizon": {"arms": ["soma-n2"], "windows": [1, 3, 4]}}}, "must divide the largest, 4"),
        (
            {"products": {"frontier": FRONTIER | {"monoliths": ["soma-n2", "spsa-n1-p16"]}}},
            "products.frontier lists `soma-n2` as monolith, which its number of experts is not",
        ),
        ({"products": {"frontier": FRONTIER | {"larger": 1e12}}}, "budgets must increase and stay below `larger`"),
        (
            {"products": {"frontier": FRONTIER | {"schedules": {"soma-n4": "soma-n2"}}}},
            "schedules repeats `soma-n4`, which is neither among monoliths nor ensembles",
        ),
        (
            {"products": {"study": {"statements": {"M1": STATEMENT | {"differences": []}}}}},
            r"products\.study\.statements\.M1\.differences",
        ),
        (
            {"products": {"study": {"statements": {"M1": STATEMENT | {"differences": [SIDES]}}}}},
            "the arm `soma-n3`, which `arms` does not define",
        ),
        ({"products": {"walk": {"arms": ["soma-n2"]}}}, r"products\.walk\.arms names `soma-n2`"),
        ({"products": {"inference": {"arms": ["soma-n2", "soma-n16", "pair-n4"]}}}, "`pair-n4`, which is not among"),
        ({"products": {"inference": {"requests_of": {"soma-n3": 4}}}}, "`soma-n3` is not one of arms"),
        (
            {"products": {"widths": {"arm": "soma-n2"}}},
            r"products\.widths\.arm is `soma-n2`, which is not an `eggroll`",
        ),
        ({"products": {"active": {"arms": ["sweep-n3", "soma-n16"]}}}, "the arm `sweep-n3`, which `arms` does not"),
        ({"products": {"variance": {"arms": ["sweep-n8"]}}}, "the arm `sweep-n8`, which `arms` does not define"),
    ],
)
def test_a_bad_configuration_is_a_sentence_that_names_the_key(change, words):
    with pytest.raises(SomaError, match=words) as caught:
        resolve(merge(small(), change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("campaign: a\narms: {}\narms: {}\n", "the key `arms` stands twice.*line 3"),
        ("training: {lr: 1, eps: 2, lr: 3}\n", "the key `lr` stands twice"),
        ("seed: 012\n", "`012` is no decimal number"),
        ("seed: 1:30\n", "`1:30` is no decimal number"),
        ("seed: 0x10\n", "`0x10` is no decimal number"),
        ("seed: 1_000\n", "`1_000` is no decimal number"),
    ],
)
def test_what_yaml_would_change_without_a_word_is_refused(tmp_path, text, words):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(SomaError, match=rf"c\.yaml is not valid YAML: {words}"):
        read_yaml(path)


def test_a_schedule_of_eggroll_is_written_only_where_there_is_one():
    """Runs without one must read as they did before schedules existed: Snakemake compares what is written."""
    keys = [
        "population",
        "streams",
        "tokens",
        "sigma",
        "alpha",
        "step",
        "state",
        "nonlinearity",
        "separator",
        "pair_chunk",
    ]
    for change, more in (
        ({}, []),
        ({"alpha_halved_at": 0.1, "step_halved_at": "plateau"}, ["alpha_halved_at", "step_halved_at"]),
    ):
        config = resolve(merge(small(), {"arms": {"eggroll-n1": {"eggroll": change | {"separator": None}}}}))
        run = make_plan(config).arm_runs["eggroll-n1"][0]
        written = run.model_dump(mode="json")["settings"]["eggroll"]
        assert set(written) == {*keys, *more}
        assert written["separator"] is None
        assert {name: written[name] for name in more} == change
        assert RunSpec.model_validate(run.model_dump(mode="json")) == run


def test_two_arms_that_are_the_same_run_are_refused():
    twin = {
        "arms": {"twin": small()["arms"]["soma-n2"]},
        "products": {"fixed_size": {"also": ["soma-n4", "soma-n8", "soma-n16", "twin"]}},
    }
    with pytest.raises(SomaError, match="`soma-n2` and `twin` describe the same run"):
        make_plan(resolve(merge(small(), twin)))


def test_layers_merge_in_order():
    overlay = {
        "training": {"lr": 1.0, "eps": 1.0, "batch": 4},
        "recipes": {"wide-local": {"lr": 2.0, "eps": 2.0}},
        "arms": {"soma-n2": {"lr": 3.0}},
    }
    arm = resolve(merge(small(), overlay)).arms["soma-n2"]
    assert (arm.batch, arm.eps, arm.lr) == (4, 2.0, 3.0)


def test_another_source_replaces_the_whole_source():
    merged = merge({"train": {"source": "fineweb-edu", "bytes": 5}}, {"train": {"source": "text", "path": "x"}})
    assert merged == {"train": {"source": "text", "path": "x"}}
    assert merge({"train": {"source": "text", "path": "x"}}, {"train": {"path": "y"}})["train"]["path"] == "y"


def test_numbers_are_those_of_yaml_1_2(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("a: 1e-3\nb: 8.33e6\nc: 1.0e-3\nd: 12\ne: 1e\n")
    assert read_yaml(path) == {"a": 1e-3, "b": 8.33e6, "c": 1e-3, "d": 12, "e": "1e"}


@pytest.mark.parametrize("text", ["a: [", "- 1", "\t"])
def test_unreadable_yaml_is_a_sentence(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(SomaError, match=r"x\.yaml"):
        read_yaml(path)


def test_a_label_retrains_nothing_and_a_learning_rate_its_own_runs():
    def digests(change):
        return settings_files(make_plan(resolve(merge(small(), change))))

    before, labelled = digests({}), digests({"arms": {"soma-n2": {"label": "ours"}}})
    assert {k for k in before if before[k] != labelled[k]} == {"campaign"}
    changed = digests({"arms": {"soma-n2": {"lr": 0.5}}})
    used = {"evaluate-soma-n2", "measure-variance", "measure-reference", "measure-inference"}
    expected = {"campaign", *used, *(f"run-soma-n2-s{s}" for s in range(3))}
    assert {k for k in before if before[k] != changed[k]} == expected


def test_how_it_runs_is_no_reason_to_run_again():
    def digests(change):
        return settings_files(make_plan(resolve(merge(small(), change))))

    before, after = digests({}), digests({"compute": {"threads": 4, "save_every": 5, "engine": "torch"}})
    assert {k for k in before if before[k] != after[k]} == {"compute"}


def test_arms_at_equal_budget_use_equal_operations():
    plan = make_plan(load(BASE))
    arms = plan.config.products.fixed_size.arms
    spent = {run.id: run.operations(run.updates) for arm in arms for run in plan.arm_runs[arm]}
    assert max(spent.values()) <= 5.0e13
    assert min(spent.values()) > 0.998 * 5.0e13


def test_paper_campaign_has_the_papers_sizes():
    plan = make_plan(load(BASE, ROOT / "config/paper.yaml"))
    sizes = {arm: runs[0].parameters for arm, runs in plan.arm_runs.items()}
    assert sizes["soma-n256"] == 8_437_760
    assert (sizes["spsa-n1-p64"], sizes["soma-n2"], sizes["soma-n8"]) == (8_333_905, 8_406_746, 8_552_264)
    assert len(plan.parts(plan.runs["soma-n256-s0"])) == 256


def test_documentation_and_schema_are_those_of_the_models():
    assert (ROOT / "config/README.md").read_text() == readme(), "run `make docs`"
    assert (ROOT / "workflow/schemas/config.schema.json").read_text() == schema(), "run `make docs`"


def test_a_derived_arm_that_describes_a_named_ones_run_shares_it():
    same = {"arms": {"pair-n4": {"updates": 400, "plateau": {"patience": 100}}}}
    plan = make_plan(resolve(merge(small(), same)))
    assert [run.id for run in plan.arm_runs["sweep-n4"]] == [f"pair-n4-s{seed}" for seed in range(3)]
    assert plan.arm_runs["sweep-n4"] == plan.arm_runs["sweep-p16"] == plan.arm_runs["sweep-b16"]


def test_only_what_is_continued_keeps_its_optimiser_state_and_only_a_search_may_fail():
    plan = make_plan(load(BASE))
    kept = {run.id for run in plan.runs.values() if run.keep_memory}
    assert kept == {"long-n4-s0", *(f"pair-n4-s{s}" for s in range(3))}
    searched = {run.id.split("-lr")[0] for run in plan.runs.values() if run.may_fail and "-lr" in run.id}
    assert searched == {"tune-n1", "tune-n2"}
    late = plan.runs["late-n4-s2"]
    assert (late.kind, late.start, late.head_from) == ("continuation", "long-n4-s0", "seed-d16-s0")


def test_a_continuation_may_take_the_first_experts_of_an_arm_with_their_shards():
    first = {
        "arms": {"long-n8": {"recipe": "four-small", "experts": 8, "updates": 10}, "late-n4": {"start": "long-n8"}}
    }
    plan = make_plan(resolve(merge(small(), first)))
    late = plan.runs["late-n4-s0"]
    assert (late.experts, late.start, late.shards, late.clusters) == (4, "long-n8-s0", "clusters-n8", 8)
    assert plan.start_folders(late, "000-003") == ["long-n8-s0/000-007"]
    assert plan.runs["pair-n4-s0"].clusters == 4
    assert plan.runs["spsa-n1-p16-s0"].clusters is None


def test_every_arm_is_evaluated_by_one_group():
    plan = make_plan(load(BASE))
    evaluated = [arm for arms in plan.groups.values() for arm in arms]
    assert len(evaluated) == len(set(evaluated))
    assert set(plan.config.products.arms) <= set(evaluated)


def test_the_number_of_active_experts_is_measured_on_arms_of_the_sweep_without_another_run():
    plan = make_plan(resolve(merge(small(), {"products": {"active": {"arms": ["sweep-n8", "soma-n16"]}}})))
    assert plan.runs == make_plan(load(BASE)).runs
    measured = settings_files(plan)["measure-active"]
    assert [run["run"]["id"] for run in measured["runs"]][:3] == [f"sweep-n8-s{s}" for s in range(3)]
    swept = make_plan(resolve(merge(small(), {"products": {"active": {"arms": ["sweep-n8"], "pairs": "sweep-n8"}}})))
    assert settings_files(swept)["measure-active"]["product"]["pair_runs"] == [f"sweep-n8-s{s}" for s in range(3)]


def test_an_arm_may_answer_a_number_of_requests_of_its_own():
    change = {"products": {"inference": {"requests_of": {"soma-n2": 96}}}}
    settings = settings_files(make_plan(resolve(merge(small(), change))))["measure-inference"]
    requests = zip([run["run"]["id"] for run in settings["runs"]], settings["requests"], strict=True)
    assert {requested for run, requested in requests if run.startswith("soma-n2-")} == {96}
    assert settings["requests"].count(256) == len(settings["runs"]) - 3
