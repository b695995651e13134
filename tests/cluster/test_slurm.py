"""The workflow through sbatch, on a Slurm that the test starts: lost jobs continue and end with the same bytes."""

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from soma.manifest import sha256_file
from tests.cluster.slurm import MISSING, Slurm
from tests.workflow.conftest import Project

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (apt-get install slurm-wlm munge)"),
]

ARM = {"operations": None, "updates": 250, "seeds": [0], "width": 16}  # some seconds: long enough to be caught
CAMPAIGN = {
    "campaign": "tiny",
    "compute": {"experts_per_job": 1, "ddpp": 2, "save_every": 0.2},
    "data": {
        "train": {"source": "text", "path": "text"},
        "validation": {"windows": 8},
        "test": {"windows": 8},
        "expert_validation": 0.2,
    },
    "routing": {"features": 200, "svd": 8, "sample": 1000, "min_df": 1},
    "training": {"milestones": [1.0]},
    "seed_run": {"updates": 2},
    "arms": {"soma-n2": ARM, "spsa-n1-p8": ARM},
}
OVERLAY = "config/changed.yaml"
READY = ("shards/iid-n1", "shards/clusters-n2", "runs/seed-d16-s0/000-000/weights.safetensors")
EXPERTS, SHARED = ("soma-n2-s0/000-000", "soma-n2-s0/001-001"), "spsa-n1-p8-s0/000-000"
PARTS = (*EXPERTS, SHARED)
TARGETS = [f"results/tiny/runs/{part}/weights.safetensors" for part in PARTS]
QUICK = ["--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "5"]  # the profile is for jobs of hours


@pytest.fixture
def slurm(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def local(project: Project, *targets: str) -> None:
    project.run("snakemake", *targets, "--cores", "2", "--configfile", OVERLAY)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Project:
    """Everything before training, made locally."""
    project = Project(tmp_path_factory.mktemp("prepared"))
    assert project.overlay(CAMPAIGN) == OVERLAY
    (project.folder / "text").mkdir()
    draw = random.Random(0)
    for i in range(400):
        words = draw.choices([f"{('sea', 'law')[i % 2]}{n}" for n in range(50)], k=60)
        (project.folder / f"text/{i:03d}.txt").write_text(" ".join(words))
    local(project, *(f"results/tiny/{name}" for name in READY))
    return project


def copy_of(project: Project, folder: Path) -> Project:
    copy = Project(folder)
    for name in ("results", ".snakemake", "text"):
        shutil.copytree(project.folder / name, folder / name)
    shutil.copy(project.folder / OVERLAY, folder / OVERLAY)
    return copy


def test_lost_jobs_continue_and_end_with_the_same_bytes(prepared, slurm, tmp_path):
    """One is cancelled, one gets the signal that precedes a time limit, one is queued again by Slurm itself."""
    project, undisturbed = (copy_of(prepared, tmp_path / name) for name in ("slurm", "local"))
    command = project.command("snakemake", *TARGETS, "--workflow-profile", "profiles/slurm", *QUICK)
    requeued = ""
    lose = {
        EXPERTS[0]: ["scancel"],
        EXPERTS[1]: ["scancel", "--signal=TERM"],
        SHARED: ["scontrol", "requeue"],
    }
    with (project.folder / "out").open("w+") as out:
        snakemake = subprocess.Popen(
            [*command, "--configfile", OVERLAY],
            cwd=project.folder,
            env=project.environment | slurm.environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            while lose:
                assert snakemake.poll() is None, f"nothing to lose of {list(lose)}"
                for part in list(lose):
                    if (project.folder / f"results/tiny/resume/{part}/state.safetensors").exists():
                        job = slurm.job(f"rule_train_expert_wildcards_{part.replace('/', '_')}")
                        slurm.run(*lose.pop(part), job)
                        requeued = job if part == SHARED else requeued
                time.sleep(0.05)
            slurm.start_now(requeued)
            local(undisturbed, *TARGETS)  # while Snakemake waits to look again
            assert snakemake.wait(timeout=240) == 0
        finally:
            snakemake.kill()
            snakemake.wait()
            said = Path(out.name).read_text()
            print(said[-6000:])  # of a failed test pytest shows it
    logs = {part: project.folder / f"results/tiny/logs/train-{part.replace('/', '-')}.log" for part in PARTS}
    assert [part for part, log in logs.items() if "continuing after update" not in log.read_text()] == []
    assert said.count("Trying to restart job") == 2

    for part in PARTS:
        for name in ("weights.safetensors", "history.parquet"):
            first, second = (p.folder / f"results/tiny/runs/{part}/{name}" for p in (undisturbed, project))
            assert sha256_file(first) == sha256_file(second), f"{part}/{name}"
