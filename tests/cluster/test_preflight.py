"""`soma preflight` against a Slurm that the test starts, with faults injected, and its parsers on recorded output."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from soma.cli import main
from soma.commands import preflight
from soma.config.training import Compute
from soma.preflight import disk, node, slurm
from soma.preflight.jobs import Job
from soma.preflight.slurm import Node, Partition, Request
from tests.cluster.slurm import MISSING, Slurm

REASON = f"not installed: {', '.join(MISSING)} (apt-get install slurm-wlm munge)"


def job(**resources) -> Job:
    known = {"mem_mb": 500, "runtime": 10, **resources}
    return Job("train_expert", {}, 1, SimpleNamespace(get=lambda name, default=None: known.get(name, default), **known))


def request(**resources) -> Request:
    (only,) = slurm.requests_of([job(**resources)])
    return only


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if MISSING:
        pytest.skip(REASON)
    started = Slurm(tmp_path_factory.mktemp("slurm"))
    with pytest.MonkeyPatch.context() as patch:
        try:
            started.start()
            for name, value in started.environment.items():
                patch.setenv(name, value)
            yield started
        finally:
            started.stop()


def statuses(checks) -> dict[str, str]:
    return {check.name: check.status for check in checks}


@pytest.mark.slurm
def test_a_cluster_that_fits_has_no_complaints(cluster, tmp_path):
    checks = slurm.check_requests([request(gpu=4), request(mem_mb=1000)], slurm.partitions(), 300)
    assert statuses(checks) == dict.fromkeys(["partition", "account", "time limit", "nodes"], "ok")
    results = tmp_path / "results/x"
    checks = slurm.check_node(request(gpu=1), Compute(), results, 300)
    assert statuses(checks) == {"folder": "ok", "engine": "ok"}
    assert not results.parent.exists()


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("resources", "name", "words"),
    [
        ({"slurm_partition": "nowhere"}, "partition", "no partition `nowhere` (but all)"),
        ({"gpu": 8}, "nodes", "no node of `all` has 8 GPU(s) (the most is 4)"),
        ({"mem_mb": 500_000}, "nodes", "has 500000 MB (the most is 128000)"),
        ({"constraint": "h100"}, "nodes", "Slurm refuses train_expert (Invalid feature specification)"),
    ],
)
def test_what_slurm_does_not_have_is_named(cluster, resources, name, words):
    checks = slurm.check_requests([request(), request(**resources)], slurm.partitions(), 300)
    failed = {check.name: check.sentence for check in checks if check.status == "failed"}
    assert list(failed) == [name]
    assert words in failed[name]


@pytest.mark.slurm
def test_a_time_limit_that_slurm_accepts_and_never_starts(cluster):
    cluster.run("scontrol", "update", "PartitionName=all", "MaxTime=60")
    try:
        checks = slurm.check_requests([request(runtime=1440)], slurm.partitions(), 300)
        waiting = slurm.check_node(request(slurm_extra="--begin=now+1hour"), Compute(), cluster.folder / "r", 1)
    finally:
        cluster.run("scontrol", "update", "PartitionName=all", "MaxTime=INFINITE")
    assert [check.name for check in checks if check.status == "failed"] == ["time limit"]
    assert "asks for 24 h, but `all` allows 60 min" in checks[2].sentence
    assert statuses(waiting) == {"short job": "warning"}
    assert "BeginTime" in waiting[0].sentence
    assert not cluster.run("squeue", "--noheader", "--states=pending").strip()


@pytest.mark.slurm
def test_an_engine_that_fails_on_the_node(cluster, tmp_path):
    folder, engine = slurm.check_node(request(), Compute(engine="triton"), tmp_path, 120)
    assert (folder.status, engine.status) == ("ok", "failed")
    assert "triton, which needs a CUDA device" in engine.sentence


@pytest.mark.slurm
def test_a_folder_that_the_node_does_not_see(cluster, tmp_path, monkeypatch):
    run = slurm._run

    def without_question(*words: str):
        for path in tmp_path.glob(".preflight-*/question"):
            path.unlink()
        return run(*words)

    monkeypatch.setattr(slurm, "_run", without_question)
    (check,) = slurm.check_node(request(), Compute(), tmp_path, 120)
    assert (check.name, check.status) == ("folder", "failed")
    assert "does not see" in check.sentence


def test_what_sinfo_says_is_read():
    text = (
        "gpu*|up|2-00:00:00|idle|64|515000|gpu:h100:4(S:0-1),shard:8\n"
        "gpu*|up|2-00:00:00|drained|64|515000|gpu:h100:4\n"
        "gpu*|up|2-00:00:00|idle~|32+|256000+|gpu:2\n"
        "long|down|infinite|mixed|16|64000|(null)\n"
    )
    gpu = Partition(True, True, 2880, (Node(64, 515000, 4), Node(32, 256000, 2)))
    assert slurm.read_partitions(text) == {
        "gpu": gpu,
        "long": Partition(False, False, float("inf"), (Node(16, 64000, 0),)),
    }
    assert [slurm.minutes_of(limit) for limit in ("30:00", "1:00:00", "1-00:00:00", "n/a")] == [
        30,
        60,
        1440,
        float("inf"),
    ]


def command(folder: Path, monkeypatch, name: str, output: str) -> None:
    """Put a command before all others that prints this."""
    (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("account", "at_once", "status", "words"),
    [
        ("mine", 50, "ok", "mine"),
        ("theirs", 50, "failed", "you may not use theirs (but mine, other)"),
        ("mine", 300, "warning", "mine may have 100 jobs in Slurm at a time"),
        (None, 50, "ok", "none is named"),
    ],
)
def test_accounts_and_the_jobs_that_they_may_have(tmp_path, monkeypatch, account, at_once, status, words):
    command(tmp_path, monkeypatch, "sacctmgr", "mine|100\nother|")
    check = slurm._account([request(slurm_account=account)], at_once)
    assert (check.status, words in check.sentence) == (status, True)


def test_an_account_that_slurm_refuses(tmp_path, monkeypatch):
    why = "allocation failure: Invalid account or account/partition combination specified"
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\necho '{why}' >&2\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    known = {"all": Partition(True, True, float("inf"), (Node(4, 8000, 0),))}
    checks = slurm.check_requests([request(slurm_account="theirs")], known, 300)
    assert [check.name for check in checks if check.status == "failed"] == ["account"]
    assert "Slurm refuses the account theirs" in checks[1].sentence


def test_a_disk_and_a_quota_that_are_too_small(tmp_path, monkeypatch):
    assert disk.check_disk(tmp_path, {"text": 1.0}).status == "ok"
    check = disk.check_disk(tmp_path, {"text": 1e18})
    assert check.status == "failed"
    assert "the plan writes 1000000.0 TB" in check.sentence
    command(tmp_path, monkeypatch, "df", "Filesystem\n/dev/x")
    table = "Disk quotas for user me (uid 1):\n Filesystem blocks quota limit grace files quota limit grace\n"
    command(tmp_path, monkeypatch, "quota", f"{table} /dev/y 5 7 8 1 0 0\n /dev/x 900* 1000 1200 5 0 0")
    assert disk.quota_left(tmp_path) == 100 * 1024
    assert "free on your quota" in disk.check_disk(tmp_path, {"text": 2e5}).sentence


def test_the_command_is_one_screen_and_its_status_says_whether_all_is_ready(project, monkeypatch, capsys):
    """On this machine, with a stand-in for the engine's check, which test_check.py tests."""
    monkeypatch.chdir(project.folder)
    for problem, status in ((None, 0), ("the engine is wrong", 1)):
        monkeypatch.setattr(
            preflight, "facts_of", lambda *_, p=problem: node.Facts(host="here", engine="cpu", problem=p)
        )
        assert main(["preflight", "--configfile", "config/toy.yaml", "--rate", "1e10"]) == status
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in lines] == ["plan", "memory", "cores", "disk", "engine", "cost"]
        assert ("failed" in lines[4]) == bool(status)
        assert re.search(r"device-hours of updates at 1e\+10/s \(--rate\)", lines[-1])
    assert not (project.folder / "results").exists()
