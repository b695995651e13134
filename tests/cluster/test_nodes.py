"""Two nodes of a Slurm that the test starts, two `slurmd` on this machine: what becomes of jobs there."""

import shlex
from pathlib import Path

import pytest

from soma.files.hashes import sha256_file
from soma.training.names import MILESTONES, WEIGHTS
from tests.cluster.slurm import MISSING, Slurm
from tests.training.distributed_runs import command, sessions, train, write_inputs

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (apt-get install slurm-wlm munge)"),
]

PREEMPTION = """
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1
"""
BOTH = ("--nodes=2", "--ntasks=2")
WARNED = "srun sh -c 'trap \"echo warned; exit 0\" TERM; sleep 300 & wait'"
SLOW_AT_FIRST = 'srun echo started; test -n "$SLURM_RESTART_COUNT" || sleep 300'


@pytest.fixture
def inputs(tmp_path):
    return write_inputs(tmp_path)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Slurm(tmp_path_factory.mktemp("slurm"), ("one", "two"), PREEMPTION)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def submit(cluster: Slurm, said: Path, script: str, *words: str, cores: int = 1) -> str:
    """Submit a script, whose output goes to the file `said`, and return its job's number."""
    common = ("--parsable", "--mem=1000", f"--cpus-per-task={cores}", f"--output={said}", "--open-mode=append")
    answer = cluster.run("sbatch", *common, *words, f"--wrap={script}").strip()
    assert answer.isdigit(), answer
    return answer


def is_in(cluster: Slurm, job: str, state: str) -> bool:
    line = cluster.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T (%r)")
    return line.startswith(state)


def test_what_happens_to_jobs_on_two_nodes(cluster, inputs, tmp_path):
    """One reaches its time limit, one is preempted, and a training job loses a node; all continue.

    They run at the same time. Slurm may warn up to a minute earlier than it was asked to; after two minutes less 50
    seconds it cannot come before the job listens.
    """
    limited = submit(cluster, tmp_path / "limited", WARNED, "--time=2", "--signal=TERM@50", "--nodelist=one")
    lesser = submit(cluster, tmp_path / "lesser", SLOW_AT_FIRST, "--partition=low", "--requeue", *BOTH)
    words = [*command(inputs, "long", "slurm", 2, {"save_every": 1e-6}), "--nodes", "2"]
    said, log, state = (inputs / name for name in ("said", "slurm.log", "resume-slurm/state.safetensors"))
    job = submit(cluster, said, shlex.join(words), "--requeue", *BOTH)
    try:
        cluster.wait_for(lambda: is_in(cluster, lesser, "RUNNING"), "the job of the lower partition")
        urgent = submit(cluster, tmp_path / "urgent", "true", *BOTH, cores=2)
        cluster.wait_for(lambda: is_in(cluster, urgent, "COMPLETED"), "the job that takes its cores")
        cluster.start_now(lesser)
        cluster.wait_for(lambda: is_in(cluster, lesser, "COMPLETED"), "the preempted job")
        cluster.wait_for(lambda: sessions(state) == 1, "the first session", 120)
        cluster.run("scontrol", "update", "NodeName=two", "State=DOWN", "Reason=test")
        cluster.wait_for(lambda: is_in(cluster, job, "PENDING"), "the job that lost a node")
        cluster.run("scontrol", "update", "NodeName=two", "State=RESUME")
        cluster.start_now(job)
        cluster.wait_for(lambda: is_in(cluster, job, "COMPLETED"), "its end", 120)
        cluster.wait_for(lambda: is_in(cluster, limited, "COMPLETED"), "the warning", 120)
    finally:
        print(said.read_text()[-6000:] if said.exists() else "")  # pytest shows it if the test fails
    assert (tmp_path / "limited").read_text().count("warned") == 1
    assert (tmp_path / "lesser").read_text().count("started") == 2 * len(BOTH)
    assert "continuing after update" in log.read_text()
    assert "2 worker(s) on 2 nodes" in log.read_text()
    whole = train(inputs, "long", "long-auto1", 1, engine="auto")
    for file in (WEIGHTS, MILESTONES):
        assert sha256_file(inputs / "out-slurm" / file) == sha256_file(whole / file)


def test_a_job_of_more_cores_than_the_partition_has_is_taken_and_never_starts(cluster, tmp_path):
    """The fault of jobs packed into one, for which Snakemake adds up the cores of those that run together."""
    job = submit(cluster, tmp_path / "said", "true", cores=9)
    cluster.wait_for(lambda: is_in(cluster, job, "PENDING (PartitionConfig)"), "the reason")
    cluster.run("scancel", job)
    refused = cluster.run("sbatch", "--cpus-per-task=5", "--mem=1000", "--wrap=true")  # of more than a node has
    assert "Requested node configuration is not available" in refused
