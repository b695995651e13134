"""Resources that the cluster profiles request, with a fake sbatch that records its arguments and fails."""

import re
from itertools import pairwise

import yaml

from soma.accounting.size import training_megabytes
from soma.config.campaign import load
from soma.plan import make_plan
from tests.project import ROOT, Project

STAND_IN = """#!/bin/sh
case $(basename "$0") in
    sinfo) echo 'all*' ;;
    sbatch) printf '%s\\0' "$@" > "$(mktemp "$CALLS/XXXXXX")"; exit 1 ;;
esac
"""


def profile(name: str) -> dict:
    return yaml.safe_load((ROOT / f"profiles/{name}/profile.yaml").read_text())


def test_the_cluster_profile_says_what_the_default_says():
    assert profile("default").items() <= profile("slurm").items()


def submitted(project: Project, *words: str) -> list[list[str]]:
    """Return the arguments of every call of sbatch."""
    calls, commands = project.folder / "calls", project.folder / "bin"
    calls.mkdir()
    commands.mkdir()
    for name in ("sbatch", "sinfo", "squeue", "sacct", "scontrol", "sshare", "sacctmgr"):
        (commands / name).write_text(STAND_IN)
        (commands / name).chmod(0o755)
    project.environment |= {"CALLS": str(calls), "PATH": f"{commands}:{project.environment['PATH']}"}
    quick = ["--slurm-init-seconds-before-status-checks", "1", "--max-jobs-per-timespan", "1000/1s"]
    done = project.run("snakemake", *words, *quick, "--workflow-profile", "profiles/slurm", check=False)
    assert "sbatch failed" in done.stdout + done.stderr, done.stderr[-4000:]
    return [path.read_text().rstrip("\0").split("\0") for path in calls.iterdir()]


def value(call: list[str], option: str) -> str:
    """Return the value of `--option=value` or `--option value`; the last one counts."""
    for word, following in reversed(list(pairwise([*call, ""]))):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.split("=", 1)[1]
    return ""


def test_each_of_256_experts_is_one_job_and_what_takes_longer_gets_more_gpus_and_nodes(project):
    """With two days for a job, an expert gets 4 GPUs, the monolith 8, and the longest population eight nodes."""
    experts = [f"results/paper/runs/soma-n256-s0/{i:03d}-{i:03d}/weights.safetensors" for i in range(256)]
    shared = "results/paper/runs/spsa-n1-p64-s0/000-000/weights.safetensors"
    wide = "results/paper/runs/eggroll-n1-d339-u102600-s0/000-000/weights.safetensors"
    (project.folder / "config/ddpp.yaml").write_text("compute: {days: 2}")
    shards = [f"shards/{name}/shards.json" for name in ("clusters-n256", "iid-n1", "clusters-n1")]
    for index in ("corpus/train/manifest.json", *shards):
        file = project.folder / "results/paper" / index
        file.parent.mkdir(parents=True)
        file.touch()
    for seed in ("seed-d32-s0", "seed-d509-s0"):
        file = project.folder / f"results/paper/runs/{seed}/000-000/weights.safetensors"
        file.parent.mkdir(parents=True)
        file.touch()
    configs = ["--configfile", "config/paper.yaml", "config/ddpp.yaml"]
    calls = submitted(project, *experts, shared, wide, *configs)

    plan = make_plan(load(ROOT / "config/config.yaml", ROOT / "config/paper.yaml"))
    assert len(calls) == 258
    for call in calls:
        run, part = re.search(r"_wildcards_(.+)_(\d+-\d+)$", value(call, "--comment")).groups()
        nodes, gpus = {"spsa-n1-p64-s0": (1, 8), "eggroll-n1-d339-u102600-s0": (8, 64)}.get(run, (1, 4))
        assert value(call, "--nodes") == str(nodes)
        assert value(call, "--gpus") == str(gpus)
        assert value(call, "--cpus-per-task") == str(gpus // nodes)
        own = training_megabytes(plan.runs[run], part, "cuda")
        assert value(call, "--mem") == str(gpus // nodes * own)
        assert value(call, "-t") == "1440"
        # An update of n = 1 takes 31 s on one GPU, the population's 6.1 s on 64, and its states 85 s to save.
        warning = {"spsa-n1-p64-s0": 309, "eggroll-n1-d339-u102600-s0": 398}.get(run, 300)
        assert value(call, "--signal") == f"TERM@{warning}"
        assert value(call, "--gpus-per-node") == ("" if nodes == 1 else "8")
        assert value(call, "--ntasks") == ("" if nodes == 1 else str(nodes))
        assert "--requeue" in call
        assert not value(call, "--ntasks-per-gpu")
    assert len({value(call, "--comment") for call in calls}) == 258
