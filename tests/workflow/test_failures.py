"""Failures around a run, and that they lose nothing."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from soma.accounting.cost import Ledger, actual_elapsed_seconds
from soma.cli import main
from soma.files.hashes import sha256_file
from tests.project import Project, planned_jobs
from tests.workflow.processes import processes_that_open, train_command, wait_for

pytestmark = pytest.mark.workflow
TARGET = "results/toy/runs/soma-n2-s0/000-001/weights.safetensors"


@pytest.fixture
def copied(toy, tmp_path) -> Project:
    """Return a copy of the finished toy campaign without one run, which then saves its state continually."""
    project = Project(tmp_path / "copy")
    shutil.copytree(toy.folder / "results", project.folder / "results")
    shutil.copytree(toy.folder / ".snakemake/metadata", project.folder / ".snakemake/metadata")
    shutil.rmtree(project.folder / "results/toy/runs/soma-n2-s0")
    project.overlay({"compute": {"save_every": 0.01}})
    return project


def start(project: Project, *words: str) -> subprocess.Popen:
    command = project.command("snakemake", *words, "--cores", "1", "--configfile", "config/changed.yaml")
    return subprocess.Popen(
        command, cwd=project.folder, env=project.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def trainers(project: Project) -> list[int]:
    """Return the processes that train in this copy."""
    return processes_that_open(project.folder / "results/toy/logs/train-soma-n2-s0-000-001.log")


def state(project: Project) -> Path:
    return project.folder / "results/toy/resume/soma-n2-s0/000-001/state.safetensors"


def same_bytes(project: Project, toy: Project) -> bool:
    return sha256_file(project.folder / TARGET) == sha256_file(toy.folder / TARGET)


def test_snakemake_killed_and_started_again_ends_with_the_same_bytes(toy, copied):
    running = start(copied, TARGET)
    wait_for(state(copied).exists)
    for trainer in wait_for(lambda: trainers(copied)):
        os.kill(trainer, signal.SIGSTOP)  # it must still run when it is killed, however slow the second Snakemake is
    second = copied.snakemake(TARGET, config="config/changed.yaml", check=False)
    assert second.returncode != 0
    assert "lock" in second.stdout + second.stderr  # two in one folder: the second reports it and changes nothing
    running.kill()
    running.wait()
    for orphan in trainers(copied):
        os.kill(orphan, signal.SIGKILL)
    assert not (copied.folder / TARGET).exists()
    copied.snakemake("--unlock", config="config/changed.yaml")
    copied.snakemake(TARGET, config="config/changed.yaml")
    assert same_bytes(copied, toy)


def test_what_an_orphan_finished_is_published_and_not_trained_again(toy, copied):
    """A job ends after its Snakemake: its outputs are whole but unrecorded, and the next Snakemake removes them."""
    planned = copied.snakemake(TARGET, "-n", "-p", config="config/changed.yaml")
    (command,) = re.findall(r"(\S+ -m soma\.cli train .*)$", planned.stdout + planned.stderr, re.M)
    subprocess.run(shlex.split(command), cwd=copied.folder, env=copied.environment, check=True, capture_output=True)
    for path in (copied.folder / TARGET).parent.iterdir():
        path.unlink()
    log = copied.folder / "results/toy/logs/train-soma-n2-s0-000-001.log"
    assert "published again" not in log.read_text()
    copied.snakemake(TARGET, config="config/changed.yaml")
    assert "published again" in log.read_text()
    assert same_bytes(copied, toy)
    cost = json.loads((copied.folder / TARGET).with_name("cost.json").read_text())
    assert len(cost["ledger"]["sessions"]) == 1
    assert not list((copied.folder / "results/toy/resume").iterdir())  # it is recorded now


@pytest.mark.parametrize("change", ["copied", "copied without .snakemake", "dated 2030", "through a link"])
def test_dates_and_places_outdate_nothing(toy, tmp_path, change):
    copy = Project(tmp_path / "copy")
    shutil.copytree(toy.folder / ".snakemake/metadata", copy.folder / ".snakemake/metadata")
    subprocess.run(["cp", "-r", toy.folder / "results", copy.folder / "results"], check=True)
    if change == "copied without .snakemake":
        shutil.rmtree(copy.folder / ".snakemake")
    elif change == "dated 2030":
        for i, path in enumerate(sorted((copy.folder / "results").rglob("*"), reverse=True)):
            os.utime(path, (1.9e9 + i, 1.9e9 + i))
    elif change == "through a link":
        (copy.folder / "results").rename(tmp_path / "elsewhere")
        (copy.folder / "results").symlink_to(tmp_path / "elsewhere")
    assert copy.planned() == {}


def test_a_job_that_is_killed_is_tried_again_and_goes_on(toy, copied):
    running = start(copied, TARGET)
    wait_for(state(copied).exists)
    [trainer] = wait_for(lambda: trainers(copied))
    assert "soma.cli.forks" in Path(f"/proc/{trainer}/cmdline").read_text()  # so the other tests here are about forks
    os.kill(trainer, signal.SIGKILL)
    assert running.wait(timeout=120) == 0
    assert same_bytes(copied, toy)
    cost = json.loads((copied.folder / TARGET).with_name("cost.json").read_text())
    assert len(cost["ledger"]["sessions"]) == 2


def mounted(folder: Path, options: str) -> None:
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system of a given size")


@needs_root
def test_a_full_disk_is_one_sentence_and_the_last_state_goes_on(toy, tmp_path):
    small = tmp_path / "small"
    whole = toy.folder / "results/toy/runs/soma-n2-s0/000-001/weights.safetensors"
    state_bytes = 4 * whole.stat().st_size  # weights, two moments, average
    mounted(small, f"size={3 * state_bytes // 2}")  # the first state is saved; there is no space for a second one
    try:
        command = train_command(toy, tmp_path / "out/000-001", small / "resume")
        done = subprocess.run(command, env=toy.environment, check=False, capture_output=True, text=True)
        assert done.returncode == 1
        assert "the disk is full; free some space (files saved earlier are intact)" in done.stderr
        assert "Traceback" not in done.stderr
        assert not list(small.rglob(".state*"))  # no partially written file
        assert (small / "resume/previous.safetensors").exists()
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        done = subprocess.run(command, env=toy.environment, check=True, capture_output=True, text=True)
        assert "continuing after update" in done.stderr
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert sha256_file(tmp_path / "out/000-001/weights.safetensors") == sha256_file(whole)


@needs_root
def test_a_read_only_folder_is_one_sentence(toy, project, caplog):
    results = project.folder / "results"
    mounted(results, "ro")
    try:
        command = train_command(toy, project.folder / "out/000-001", results / "resume")
        done = subprocess.run(command, env=toy.environment, check=False, capture_output=True, text=True)
        assert main([*command[command.index("train") :], "--log", str(results / "logs/x.log")]) == 1
        begun = project.snakemake("results/toy/corpus/source-train/manifest.json", check=False)
    finally:
        subprocess.run(["umount", str(results)], check=True)
    assert done.returncode == begun.returncode == 1
    for said in (done.stderr, caplog.text, begun.stdout + begun.stderr):
        assert said.count("cannot be written: the file system is read-only; choose a writable folder") == 1
        assert "Traceback" not in said


def test_a_clock_that_jumps_changes_no_duration_but_the_span_over_sessions(monkeypatch):
    """Between two sessions only the wall clock advances (DEVIATIONS.md)."""
    wall, steady = [1000.0], [50.0]
    monkeypatch.setattr(time, "time", lambda: wall[0])
    monkeypatch.setattr(time, "monotonic", lambda: steady[0])
    ledger = Ledger()
    ledger.begin()
    with ledger.measure("update"):
        wall[0], steady[0] = 10.0, 53.0  # the wall clock is set back by 990 seconds, while three pass
    assert ledger.seconds["update"] == 3.0
    assert ledger.sessions == [[1000.0, 1003.0]]
    ledger.begin()
    with ledger.measure("update"):
        steady[0] += 7.0
    assert ledger.seconds["update"] == 10.0
    assert ledger.sessions == [[1000.0, 1003.0], [10.0, 17.0]]
    assert actual_elapsed_seconds([ledger]) == 993.0


def test_a_run_is_known_by_the_engine_that_it_took(copied):
    """`auto` selects the compiled engine, or torch if it is not built; this difference must not cause retraining."""
    for library in copied.folder.glob("src/soma/*/*.so"):
        library.unlink()
    evaluation = "results/toy/evaluation/test/soma-n2.parquet"
    copied.snakemake(TARGET, evaluation, config="config/changed.yaml")
    folder = (copied.folder / TARGET).parent
    assert json.loads((folder / "run.json").read_text())["engine"] == "torch"

    def planned(target):
        done = copied.snakemake(target, "-n", config="config/changed.yaml")
        return planned_jobs(done.stdout + done.stderr)

    assert planned(evaluation) == {}
    path = copied.folder / "src/soma/forward/torch_engine.py"
    path.write_text(path.read_text().replace("_TIME_CHUNK = 64", "_TIME_CHUNK = 32"))
    assert planned(TARGET) == {"train_expert_with_leg": 1}
