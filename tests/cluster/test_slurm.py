"""The workflow through sbatch, from raw text to a summary, on a Slurm that the test starts.

Lost jobs continue, and the outputs have the bytes of a local run on one core."""

import subprocess
import time
from pathlib import Path

import pytest

from soma.files.hashes import sha256_file
from tests import short_campaign
from tests.cluster.slurm import MISSING, Slurm
from tests.project import Project

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (apt-get install slurm-wlm munge)"),
]

# It takes some seconds: long enough to interrupt.
ARM = {"operations": None, "updates": 250, "seeds": [0], "width": 16}
COMPUTE = {"experts_per_job": 1, "ddpp": 2, "save_every": 0.2}
OVERLAY = "config/changed.yaml"
EXPERTS, SHARED = ("soma-n2-s0/000-000", "soma-n2-s0/001-001"), "spsa-n1-p8-s0/000-000"
PARTS = (*EXPERTS, SHARED)
RULES = [
    *("download", "encode", "evaluation_set", "fit_features", "transform", "fit_router", "assign", "shard"),
    *("train_seed", "train_expert_with_leg", "evaluate", "measure", "summarise"),
]
"""Rules that the test runs: those whose products need no whole campaign, as costs do and with them every table."""
TARGETS = [f"results/tiny/measurements/{name}.parquet" for name in ("losses", "inference")]
EVALUATED = [f"evaluation/test/{arm}.parquet" for arm in ("soma-n2", "spsa-n1-p8")]
AGAIN = ["--preemptible-retries", "1"]
"""For the job that is cancelled; the others are Slurm's to start again."""
QUICK = ["--slurm-init-seconds-before-status-checks", "6", "--latency-wait", "5", "--set-threads", "measure=4"]
"""Options that adapt the profile, which is meant for long jobs on nodes with many cores."""


@pytest.fixture
def slurm(tmp_path_factory):
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def checkout(folder: Path) -> Project:
    project = Project(folder)
    assert short_campaign.checkout(project, "tiny", COMPUTE, {"soma-n2": ARM, "spsa-n1-p8": ARM}) == OVERLAY
    return project


def test_lost_jobs_continue_and_end_with_the_same_bytes(slurm, tmp_path):
    """One job is cancelled, one receives the signal that precedes a time limit, and one is requeued from outside."""
    project, undisturbed = (checkout(tmp_path / name) for name in ("slurm", "local"))
    command = project.command("snakemake", *TARGETS, "--workflow-profile", "profiles/slurm", *QUICK, *AGAIN)
    requeued = []
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
                        job = slurm.job(f"rule_train_expert_with_leg_wildcards_{part.replace('/', '_')}")
                        slurm.run(*lose.pop(part), job)
                        requeued += [job] if part != EXPERTS[0] else []
                time.sleep(0.05)
            for job in requeued:
                slurm.start_now(job)
            local = [f"results/tiny/{name}" for name in EVALUATED]
            undisturbed.snakemake(*local, config=OVERLAY, cores=1)  # while Snakemake waits before its next poll
            assert snakemake.wait(timeout=900) == 0
        finally:
            snakemake.kill()
            snakemake.wait()
            said = Path(out.name).read_text()
            print(said[-6000:])  # pytest shows it if the test fails
    logs = {part: project.folder / f"results/tiny/logs/train-{part.replace('/', '-')}.log" for part in PARTS}
    assert [part for part, log in logs.items() if "continuing after update" not in log.read_text()] == []
    assert said.count("Trying to restart job") == 1
    full = "".join(path.read_text() for path in (project.folder / ".snakemake/log").iterdir())
    logged = {rule for rule in RULES if f"slurm_logs/rule_{rule}/" in full}
    assert logged == set(RULES), "a rule did not go through sbatch"

    trained = [f"runs/{part}/{name}" for part in PARTS for name in ("weights.safetensors", "history.parquet")]
    for name in (*trained, "corpus/train/bytes.bin", *EVALUATED):
        first, second = (p.folder / f"results/tiny/{name}" for p in (undisturbed, project))
        assert sha256_file(first) == sha256_file(second), name
