"""Resources that the cluster profiles request, with a fake sbatch that records its arguments and fails."""

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


def test_each_of_256_experts_is_one_job_with_one_gpu_and_shared_directions_get_several(project):
    experts = [f"results/paper/runs/soma-n256-s0/{i:03d}-{i:03d}/weights.safetensors" for i in range(256)]
    shared = "results/paper/runs/spsa-n1-p64-s0/000-000/weights.safetensors"
    (project.folder / "config/ddpp.yaml").write_text("compute: {ddpp: 8}")
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
    calls = submitted(project, *experts, shared, *configs)

    plan = make_plan(load(ROOT / "config/config.yaml", ROOT / "config/paper.yaml"))
    memory = {
        1: training_megabytes(plan.runs["soma-n256-s0"], "000-000", "cuda"),
        8: 8 * training_megabytes(plan.runs["spsa-n1-p64-s0"], "000-000", "cuda"),
    }
    assert len(calls) == 257
    for call in calls:
        gpus = 8 if "spsa-n1-p64-s0" in value(call, "--comment") else 1
        assert value(call, "--gpus") == str(gpus)
        assert value(call, "--cpus-per-task") == str(gpus)
        assert value(call, "--mem") == str(memory[gpus])
        assert value(call, "-t") == "1440"
        assert value(call, "--signal") == "TERM@300"
        assert "--requeue" in call
    assert len({value(call, "--comment") for call in calls}) == 257
