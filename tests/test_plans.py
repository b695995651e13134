"""Dry runs: the plans of all campaigns are whole and free of side effects; bad configurations are sentences."""

import os
import re
import time
from pathlib import Path

import pytest

from soma.accounting import size
from soma.accounting.schedule import nodes_of, seconds_of, warning_of, workers_of
from soma.accounting.size import training_megabytes
from soma.cli import main
from soma.config.campaign import BASE, load, merge, read_yaml, resolve
from soma.data import shards
from soma.errors import SomaError
from soma.files.atomic import write_json
from soma.plan import make_plan
from soma.report.table import significant
from soma.workflow import words
from tests.project import ROOT, planned_jobs


@pytest.mark.parametrize(
    ("config", "jobs"),
    [
        ("", {"train_seed": 14, "train_expert": 171, "fit_router": 4, "measure": 9}),
        ("config/toy.yaml", {"train_seed": 6, "train_expert": 58, "train_expert_with_leg": 6, "fit_router": 3}),
        ("config/paper.yaml", {"train_seed": 6, "train_expert": 931, "train_expert_with_leg": 270, "download": 3}),
    ],
)
def test_dry_run_shows_the_whole_plan(project, config, jobs):
    assert jobs.items() <= project.planned(config).items()
    assert not (project.folder / "results").exists()


REHEARSAL = [Path("config/config.yaml"), Path("config/paper.yaml"), Path("config/paper-shape.yaml")]
SMALL = {"width", "batch", "crop", "lr", "updates", "operations", "plateau", "eggroll"}
"""Settings of training that the rehearsal changes."""


def test_the_rehearsal_of_the_paper_has_its_runs_jobs_and_products(monkeypatch):
    monkeypatch.chdir(ROOT)
    paper, rehearsal = make_plan(load(*REHEARSAL[:2])), make_plan(load(*REHEARSAL))

    def shape(plan):
        """What a plan is but for names, which tell widths and lengths of some arms."""
        number = {run: i for i, run in enumerate(dict.fromkeys(r.id for runs in plan.arm_runs.values() for r in runs))}
        arms = [
            [
                (
                    run.settings.model_dump(exclude=SMALL),
                    (run.kind, run.seed, number.get(run.start, run.start is None), run.head_from is None, run.shards),
                    (run.subset, run.keep_memory, run.may_fail, run.leg is None, plan.parts(run)),
                )
                for run in runs
            ]
            for runs in plan.arm_runs.values()
        ]
        place = {arm: i for i, arm in enumerate(plan.arm_runs)}
        groups = {name: [place[arm] for arm in group] for name, group in plan.groups.items()}
        return arms, groups, len(plan.runs), sum(len(plan.parts(run)) for run in plan.runs.values())

    assert shape(rehearsal) == shape(paper)
    assert shape(paper)[2:] == (127, 1207)
    named = {name: product.arms for name, product in paper.config.products if hasattr(product, "arms")}
    assert named == {name: p.arms for name, p in rehearsal.config.products if hasattr(p, "arms")}
    spent = [sum(float(run.operations(run.updates)) for run in plan.runs.values()) for plan in (rehearsal, paper)]
    assert spent[0] < 1e-9 * spent[1]


def test_snakemake_merges_overlays_as_soma_does(project):
    """A source of another kind takes nothing over from that of an earlier overlay."""
    targets = [f"results/paper-shape/{name}" for name in ("routing/clusters-n8.json", "shards/clusters-n8/shards.json")]
    done = project.run("snakemake", "-n", *targets, "--configfile", *map(str, REHEARSAL[1:]))
    of_parts = dict.fromkeys(("encode_part", "transform", "assign"), 40)
    whole = ("download", "join", "fit_features", "fit_router", "describe_clusters", "shard")
    assert planned_jobs(done.stdout + done.stderr) == of_parts | dict.fromkeys(whole, 1)


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
    done = project.snakemake("-n", config=project.overlay({"campaign": "$(touch pwned)"}), check=False)
    assert done.returncode != 0
    assert "`campaign` is" in done.stdout + done.stderr
    assert not (project.folder / "pwned").exists()


@pytest.mark.parametrize("name", ["x; touch pwned", "$(touch pwned)", "`touch pwned`", "x y", "x\n", "../x", "-x", "X"])
def test_names_that_reach_a_shell_or_a_path_are_plain(name):
    base = merge(read_yaml(ROOT / "config/config.yaml"), read_yaml(ROOT / "config/toy.yaml"))
    resolve(merge(base, {"arms": {"plain-1": {"updates": 5}}}))
    for change, where in (({"campaign": name}, "`campaign`"), ({"arms": {name: {"updates": 5}}}, "arms.")):
        with pytest.raises(SomaError, match=rf"(?s){where}.*string should match pattern"):
            resolve(merge(base, change))


def test_the_linter_says_nothing_but_what_a_comment_of_the_profile_justifies(project):
    justified = re.findall(r'^# - "(.+?)": \w', (ROOT / "profiles/default/profile.yaml").read_text(), re.M)
    done = project.snakemake("--lint", check=False)
    assert set(re.findall(r"^    \* (.+?)\.?:$", done.stdout + done.stderr, re.M)) == set(justified) != set()


@pytest.mark.parametrize("profile", ["default", "slurm"])
def test_a_target_that_is_taken_for_a_configuration_file_is_one_sentence(project, profile):
    """Before the option and after `--` it is a target."""
    command = ["snakemake", "-n", "--cores", "1", "--workflow-profile", f"profiles/{profile}"]
    done = project.run(*command, "--configfile", "config/toy.yaml", "data", check=False)
    assert done.returncode == 1
    (sentence,) = [line for line in done.stderr.splitlines() if not line.startswith("Using workflow specific profile")]
    assert sentence.startswith("--configfile takes all words that follow for configuration files")
    assert "there is no file data" in sentence
    plans = [project.run(*command, *order) for order in (["data", *TOY], [*TOY, "--", "data"])]
    assert [planned_jobs(plan.stdout + plan.stderr).keys() for plan in plans] == [{*DATA}, {*DATA}]


TOY, DATA = ["--configfile", "config/toy.yaml"], ("data", "download", "encode", "evaluation_set")


def test_only_words_after_the_option_are_taken_for_configuration_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.json", "table.md"):
        Path(name).touch()
    os.mkfifo("pipe")  # as of `--configfile <(...)`
    for good in ("x --configfile a.yaml b.json pipe", "--configfiles a.yaml -n", "--configfile a.yaml -- x", "-s x y"):
        words.check(good.split())
    for bad in ("x --configfile a.yaml y", "--configfiles a.yaml table.md", "--configfile=a.yaml --configfile c.yaml"):
        with pytest.raises(SystemExit, match=f"-- {bad.split()[-1]}$"):
            words.check(bad.split())


def told(capsys, *words: str) -> list[str]:
    """Lines of a subcommand."""
    assert main(words) == 0
    return capsys.readouterr().out.splitlines()


def test_the_cost_is_told_before_anyone_spends_it(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert told(capsys, "plan", "--configfile", "config/toy.yaml")[0] == "campaign toy: 67 runs in 70 training jobs"
    lines = told(capsys, "plan", "--configfile", "config/paper.yaml")
    arms = {row[0]: row for line in lines if len(row := line.split()) == 9}
    # The paper's own operations: Figure 4's early continuation, Table 11's, and its 51.3 times less compute for a byte.
    assert {arms[arm][7] for arm in ("pair-n4", "pair-n4-summed")} == {"2.75e15"}
    assert {arms[f"split-n{n}-b{b}"][7] for n, b in ((16, 64), (32, 32), (64, 16))} == {"4.5e16"}
    served = {arm: int(arms[arm][5].replace(",", "")) for arm in ("soma-n2", "soma-n256")}
    assert served["soma-n2"] / served["soma-n256"] == pytest.approx(51.3, abs=0.05)
    assert lines[-1].startswith("to serve a byte, soma-n2 needs 51.3 times the operations of soma-n256")
    assert any(
        re.fullmatch(r"longest training job: soma-n2-random-s0 000-000, 11\.8 days with 1 .* 12 start\(s\) .*", line)
        for line in lines
    )
    assert any(
        re.fullmatch(r"jobs with several processes .*: 36, with up to 64 on 8 node\(s\)", line) for line in lines
    )
    assert any(re.fullmatch(r"starts of training jobs: 5,525, which read [0-9,]+ GB of text", line) for line in lines)
    assert any(re.match(r" +1\.7e5 h  at 4\.5e\+12/s: the paper's RTX 5090", line) for line in lines)


def test_status_of_an_unfinished_campaign(tmp_path, monkeypatch, capsys):
    """A run of each of two methods is done, one has saved its state."""
    monkeypatch.chdir(tmp_path)
    Path("config").symlink_to(ROOT / "config")
    plan = make_plan(load(Path("config/config.yaml"), Path("config/toy.yaml")))
    done = plan.runs["soma-n2-s0"]
    slow = plan.runs["bptt-n1-s0"]
    (other,) = plan.folders(plan.runs["soma-n4-s0"])
    for run, seconds in ((done, 2.0), (slow, 8.0)):
        (folder,) = plan.folders(run)
        write_json(Path("results/toy/runs") / folder / "cost.json", {"ledger": {"seconds": {"update": seconds}}})
    state = Path("results/toy/resume") / other / "state.safetensors"
    state.parent.mkdir(parents=True)
    state.touch()
    lines = told(capsys, "status", "--configfile", "config/toy.yaml")
    counts = {m[1]: m.groups()[1:] for line in lines if (m := re.match(r"([a-z ]+?) +(\d+) +(\d+) +(\d+)$", line))}
    others = sum(len(plan.arm_runs[arm]) for arm in plan.config.products.fixed_size.arms) - 2
    assert counts.pop("equal total size") == ("1", "1", str(others))
    assert counts.pop("backpropagation")[:2] == ("1", "0")
    assert {(row[0], row[1]) for row in counts.values()} == {("0", "0")}
    assert sum(int(row[2]) for row in counts.values()) > 30
    work: dict[str, float] = {}
    for run in plan.runs.values():
        work[run.settings.method] = work.get(run.settings.method, 0.0) + run.operations(run.updates)
    own = {run.settings.method: float(run.operations(run.updates)) for run in (done, slow)}
    speed = {"spsa": own["spsa"] / 2.0, "bptt": own["bptt"] / 8.0, "eggroll": sum(own.values()) / 10.0}
    hours = sum((work[m] - own.get(m, 0.0)) / speed[m] for m in work) / 3600
    assert f"left: {significant(hours)} device-hours of updates, at the speed of each method so far" in lines


def test_status_of_the_papers_jobs_takes_no_second(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config").symlink_to(ROOT / "config")
    plan = make_plan(load(*REHEARSAL[:2]))
    folders = [folder for run in plan.runs.values() for folder in plan.folders(run)]
    for folder in folders[::2]:
        (Path("results/paper/runs") / folder).mkdir(parents=True)
        Path("results/paper/runs", folder, "cost.json").write_text('{"ledger": {"seconds": {"update": 3.0}}}')
    for folder in folders[1::2]:
        (Path("results/paper/resume") / folder).mkdir(parents=True)
        Path("results/paper/resume", folder, "state.safetensors").touch()
    began = time.process_time()
    lines = told(capsys, "status", "--configfile", "config/paper.yaml")
    assert time.process_time() - began < 1
    counts = [[int(n) for n in m.groups()] for line in lines if (m := re.search(r" (\d+) +(\d+) +(\d+)$", line))]
    assert [sum(column) for column in zip(*counts, strict=True)] == [604, 603, 0]


def test_small_has_no_legs_until_it_is_trained_again():
    """Asking for them would plan training of runs that were recorded before there were legs."""
    assert [run for run in make_plan(load(ROOT / "config/config.yaml")).runs.values() if run.leg is not None] == []


@pytest.mark.parametrize("config", ["config/toy.yaml", "config/paper.yaml"])
def test_one_seed_of_every_arm_of_table_4_publishes_its_last_leg(config):
    plan = make_plan(load(ROOT / "config/config.yaml", ROOT / config))
    legs = {run.id: run for run in plan.runs.values() if run.leg is not None}
    assert set(legs) == {plan.arm_runs[arm][0].id for arm in plan.config.products.fixed_size.arms}
    for run in legs.values():
        every = run.settings.plateau.every
        assert 0 < run.leg < run.updates <= run.leg + 2 * every
        assert run.leg + every < run.updates or run.leg == 1  # a check before the end lies in it


def test_memory_grows_with_what_a_job_holds():
    plan = make_plan(load(ROOT / "config/config.yaml", ROOT / "config/paper.yaml"))
    one, many = (training_megabytes(plan.runs["soma-n256-s0"], part, "cpu") for part in ("000-000", "000-015"))
    assert 2000 < one < many < 16 * one
    assert size._TEXT << 20 == shards._MEMORY
    assert training_megabytes(plan.runs["eggroll-n1-s0"], "000-000", "cpu") > 3 * 8530  # the states and two copies


def test_parts_of_the_text_need_no_more_disk_than_the_shards_that_follow(capsys, monkeypatch):
    plan = make_plan(load(ROOT / "config/config.yaml", ROOT / "config/paper.yaml"))
    stored, joined = size.stored_bytes(plan), size.joining_bytes(plan)
    assert joined == 2e11 <= stored["text"] + stored["text of shards"]
    assert size.joining_bytes(make_plan(load(ROOT / "config/config.yaml"))) == 0  # in one part
    monkeypatch.chdir(ROOT)
    assert main(["plan", "--configfile", "config/paper.yaml"]) == 0
    assert "text while its encoded parts are joined: 200 GB, before shards are written" in capsys.readouterr().out


def test_no_job_of_the_paper_takes_longer_than_it_may_and_each_is_warned_in_time():
    planned = make_plan(load(BASE, ROOT / "config/paper.yaml"))
    compute = planned.config.compute
    shared = set()
    for run in planned.runs.values():
        for part in planned.parts(run):
            workers = workers_of(run, part, compute)
            seconds = seconds_of(run, part, compute) / workers
            assert seconds <= compute.days * 86400
            assert warning_of(run, part, compute) >= 300 + 2 * seconds / run.updates - 1
            assert workers == nodes_of(run, part, compute) * min(workers, compute.node_workers)
            shared |= {run.settings.method} if workers > 1 else set()
    assert shared == {"spsa", "eggroll"}
    monolith, bptt = planned.runs["spsa-n1-p64-s0"], planned.runs["bptt-n1-s0"]
    everything = compute.model_copy(update={"days": None, "ddpp": 100})
    assert [workers_of(run, "000-000", everything) for run in (monolith, bptt)] == [64, 1]
    assert nodes_of(monolith, "000-000", everything.model_copy(update={"node_workers": 12})) == 8  # of eight each
