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

CAMPAIGN = {
    "campaign": "tiny",
    "compute": {"experts_per_job": 1, "save_every": 0.2},
    "data": {
        "train": {"source": "text", "path": "text"},
        "validation": {"windows": 8},
        "test": {"windows": 8},
        "expert_validation": 0.2,
    },
    "routing": {"features": 200, "svd": 8, "sample": 1000, "min_df": 1},
    "training": {"milestones": [1.0]},
    # Some seconds of training each: long enough to be caught.
    "seed_run": {"updates": 600},
    "arms": {"soma-n2": {"operations": None, "updates": 600, "seeds": [0], "width": 16}},
}
READY = ("shards/iid-n1", "shards/clusters-n2", "routing/router-n2", "sets/test.parquet")
OVERLAY = "config/changed.yaml"
TARGET = "results/tiny/evaluation/test/soma-n2.parquet"
SEED, EXPERTS = "seed-d16-s0/000-000", ("soma-n2-s0/000-000", "soma-n2-s0/001-001")
# The profile is for jobs of hours.
QUICK = ["--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "5"]


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
    """One job is queued again by Slurm, one is cancelled, one gets the signal that precedes a time limit."""
    project = copy_of(prepared, tmp_path / "slurm")
    project.environment |= slurm.environment
    states = {part: project.folder / f"results/tiny/resume/{part}/state.safetensors" for part in (SEED, *EXPERTS)}
    command = project.command("snakemake", TARGET, "--workflow-profile", "profiles/slurm", *QUICK)
    command += ["--configfile", OVERLAY]
    with (project.folder / "out").open("w") as out:
        snakemake = subprocess.Popen(
            command, cwd=project.folder, env=project.environment, stdout=out, stderr=subprocess.STDOUT
        )

    def running(rule: str) -> list[str]:
        """Identifiers of Slurm's running jobs of a rule."""
        return [job for job, comment in slurm.jobs() if comment.startswith(f"rule_{rule}")]

    def wait_for(*parts: str) -> None:
        deadline = time.monotonic() + 120
        while not all(states[part].exists() for part in parts):
            assert snakemake.poll() is None, (project.folder / "out").read_text()[-4000:]
            assert time.monotonic() < deadline, (project.folder / "out").read_text()[-4000:]
            time.sleep(0.05)

    wait_for(SEED)
    (job,) = running("train_seed")
    slurm.run("scontrol", "requeue", job)
    slurm.wait_for(lambda: "PENDING" in slurm.run("squeue", "--noheader", f"--jobs={job}", "--format=%T"), "the queue")
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm's own choice is two minutes later
    wait_for(*EXPERTS)
    array = running("train_expert")
    assert sorted(job.split("_")[1] for job in array) == ["1", "2"]
    slurm.run("scancel", array[0])
    slurm.run("scancel", "--signal=TERM", "--full", array[1])
    assert snakemake.wait(timeout=300) == 0, (project.folder / "out").read_text()[-4000:]

    for part in (SEED, *EXPERTS):
        log = project.folder / f"results/tiny/logs/train-{part.replace('/', '-')}.log"
        assert "continuing after update" in log.read_text(), part
    said = (project.folder / "out").read_text()
    assert said.count("Trying to restart job") == 2

    undisturbed = copy_of(prepared, tmp_path / "local")
    local(undisturbed, TARGET)
    names = [f"runs/{part}/{name}" for part in states for name in ("checkpoints.safetensors", "history.parquet")]
    for name in (*names, TARGET.removeprefix("results/tiny/")):
        first, second = (p.folder / "results/tiny" / name for p in (undisturbed, project))
        assert sha256_file(first) == sha256_file(second), name
