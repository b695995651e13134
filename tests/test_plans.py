"""Dry runs: the plans of all campaigns are whole, quick and free of side effects; bad configurations are sentences."""

import time

import pytest

from soma.workflow import code, code_files


@pytest.mark.parametrize(
    ("config", "jobs"),
    [
        ("", {"train_seed": 14, "train_expert": 171, "fit_router": 4, "measure": 7}),
        ("config/toy.yaml", {"train_seed": 6, "train_expert": 46, "fit_router": 2, "measure": 7}),
        ("config/paper.yaml", {"train_seed": 10, "train_expert": 948, "fit_router": 5, "download": 3}),
    ],
)
def test_dry_run_shows_the_whole_plan_in_seconds(project, config, jobs):
    start = time.monotonic()
    planned = project.planned(config)
    assert time.monotonic() - start < 60  # seconds on a quiet machine; a guard against minutes, not a benchmark
    assert jobs.items() <= planned.items()
    assert not (project.folder / "results").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"training": {"n_prt": 3}}, "unknown key `training.n_prt`"),
        ({"data": {"prefix": 256}}, "must be longer than the routed prefix"),
        ({"arms": {"soma-n2": {"k": 5}}}, "k (5) must not be larger than the number of experts (2)"),
    ],
)
def test_a_bad_configuration_stops_before_the_plan(project, change, words):
    done = project.snakemake("-n", config=project.overlay(change), check=False)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_configuration_can_run_no_code(project):
    path = project.folder / "config/evil.yaml"
    path.write_text("campaign: !!python/object/apply:os.system ['touch pwned']\n")
    done = project.run("soma.cli", "plan", "--configfile", "config/evil.yaml", check=False)
    assert done.returncode == 1
    assert "is not valid YAML" in done.stderr
    for name in ("x; touch pwned", "$(touch pwned)", "`touch pwned`"):
        done = project.snakemake("-n", config=project.overlay({"campaign": name}), check=False)
        assert done.returncode != 0
        assert "`campaign` is" in done.stdout + done.stderr
    assert not (project.folder / "pwned").exists()


def test_a_step_knows_the_code_that_it_runs():
    train = {p.name for p in code_files("train")}
    assert {"loop.py", "spsa.py", "lstm.py", "probes.py", "windows.py", "engine.cpp"} <= train
    assert not {"tables.py", "config.py", "kmeans.py", "sets.py"} & train
    assert "choose.py" not in {p.name for p in code_files("download")}  # what is left out of a set is no new download
    assert "shards.py" not in {p.name for p in code_files("features")}
    steps = ("download", "encode", "sets", "features", "clusters", "shard", "train", "evaluate", "summarise", "report")
    assert len({code(step) for step in steps}) == len(steps)


def test_an_edit_of_one_measurement_is_no_reason_to_repeat_another():
    names = {p.name for p in code_files("measure.active")}
    assert {"experts.py", "measured.py", "published.py"} <= names
    assert not {"objective.py", "estimator_variance.py", "benchmark.py"} & names


@pytest.mark.parametrize(
    ("config", "words"),
    [
        # The paper's own operations: Figure 4's early continuation, Table 11's, and (16,806,272 / 327,680 =) 51.3 times
        # less compute for a byte of N = 256 than of N = 2.
        ("config/paper.yaml", ["2.75e15", "4.5e16", "16,806,272", "327,680"]),
        ("config/toy.yaml", ["campaign toy: 52 runs in 52 training jobs"]),
    ],
)
def test_the_cost_is_told_before_anyone_spends_it(project, config, words):
    told = project.run("soma.cli", "plan", "--configfile", config).stdout
    assert not [word for word in words if word not in told]
    assert "device-hours" in told
    assert pytest.approx(51.3, abs=0.05) == 16_806_272 / 327_680
