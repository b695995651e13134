"""`soma train` on small text, killed where it hurts and at random moments, on a full disk, and with damaged data."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from soma.cli import main
from soma.errors import SomaError
from soma.training import checkpoint
from soma.training.finished import forget
from tests.training.license_job import Job, write_inputs

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of a fork, since Python 3.12
PUBLISHED = (
    "milestones.safetensors",
    "weights.safetensors",
    "leg.safetensors",
    "history.parquet",
    "cost.json",
    "run.json",
)
"""In this order."""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Return the inputs of a job."""
    return write_inputs(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory) -> tuple[Job, float]:
    """One that nobody stopped, and its seconds."""
    job, began = Job(tmp_path_factory.mktemp("undisturbed"), data), time.monotonic()
    assert job.run() == 0
    return job, time.monotonic() - began


@pytest.fixture
def job(data, tmp_path) -> Job:
    return Job(tmp_path, data)


_IMPORTED = """
import json, sys
from soma.cli import main
status = main(sys.argv[1:])
print(json.dumps([status, sorted(sys.modules)]))
"""


def test_a_job_imports_only_what_it_uses(job):
    """Imports take longer than a toy job trains; pyarrow would import pandas to convert a list."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED, *job.words], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    status, imported = json.loads(done.stdout)
    assert status == 0
    assert (job.output / "history.parquet").exists()
    assert {"torch", "pyarrow", "soma.training.job", "soma.estimators.spsa"} <= set(imported)
    unused = ("pandas", "scipy", "sklearn", "matplotlib", "huggingface_hub", "snakemake")
    assert [name for name in imported if name.split(".")[0] in unused] == []
    rooms = ("analysis", "commands", "evaluation", "inference", "measurements", "plan", "report", "workflow")
    others = ("data.sources.", "estimators.bptt", "estimators.eggroll", "forward.triton", "routing.features")
    foreign = tuple(f"soma.{name}" for name in (*rooms, *others))
    assert [name for name in imported if name.startswith(foreign) and name != "soma.data.sources.base"] == []


def die(*_, **__) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_rename(monkeypatch, name: str, count: int = 1) -> None:
    """Die with the count-th file of that name whole under its temporary name."""
    real, seen = os.replace, []

    def replace(source, target) -> None:
        seen.extend([target] * (Path(target).name == name))
        if len(seen) == count:
            die()
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)


def inside_a_write(monkeypatch) -> None:
    """Die with half of the next state written."""
    real = checkpoint.save_file

    def half(tensors, path, metadata) -> None:
        real(tensors, path, metadata)
        os.truncate(path, path.stat().st_size // 2)
        die()

    monkeypatch.setattr(checkpoint, "save_file", half)


def test_killed_where_it_writes(undisturbed, job, monkeypatch):
    whole, _ = undisturbed
    for kill in (inside_a_write, lambda m: at_rename(m, "state.safetensors")):
        with monkeypatch.context() as patched:
            kill(patched)
            assert job.run() == -9
        assert list(job.resume.iterdir())
        assert not job.state.exists()  # what it left is no state
    for kill in (lambda m: at_rename(m, "state.safetensors", 3), inside_a_write):
        with monkeypatch.context() as patched:
            kill(patched)
            assert job.run() == -9
        assert (job.resume / "previous.safetensors").exists()
    for name in ("weights.safetensors", "run.json", "finished"):  # with part of its results written
        with monkeypatch.context() as patched:
            at_rename(patched, name)
            assert job.run() == -9
        assert "continuing after update" in job.log.read_text()
        assert not job.output.exists()
    for done, name in enumerate(PUBLISHED):
        with monkeypatch.context() as patched:
            at_rename(patched, name, 1 if done else 2)  # at first it trains and finishes
            assert job.run() == -9
        assert {n for n in PUBLISHED if (job.output / n).exists()} == set(PUBLISHED[:done])
    assert job.run() == 0
    assert job.digests() == whole.digests()
    assert job.left() == {"finished"}


def test_what_is_finished_is_published_again_and_never_trained_twice(undisturbed, job, data, tmp_path, caplog):
    """Snakemake removes the outputs of a job whose record was lost, then runs it again."""
    whole, _ = undisturbed
    assert job.run() == 0
    sessions = json.loads((job.output / "cost.json").read_text())["ledger"]["sessions"]

    def again(words=()):
        shutil.rmtree(job.output)
        job.log.write_text("")
        job.words += words
        assert job.run() == 0
        assert job.digests() == whole.digests()
        return "published again" in job.log.read_text()

    assert again()
    assert json.loads((job.output / "cost.json").read_text())["ledger"]["sessions"] == sessions
    os.utime(data / "train/bytes.bin", (2e9, 2e9))  # dates mean nothing
    copy = tmp_path / "copy"
    shutil.copytree(job.resume, copy)
    shutil.rmtree(job.resume)
    shutil.move(copy, job.resume)  # a copy serves as well
    assert again()
    for path in (job.resume / "finished").iterdir():
        with path.open("r+b") as f:  # in a link: the published file is another one from here on
            f.truncate(path.stat().st_size // 2)
        assert not again()
    assert not again(["--code", "train/spsa/cpu:other"])  # other code may give other results
    assert again()


def test_what_the_workflow_has_recorded_is_forgotten(job, tmp_path):
    assert job.run() == 0
    resume = tmp_path / "all"
    part = resume / "run/000-001"
    part.parent.mkdir(parents=True)
    shutil.move(job.resume, part)
    forget(resume, lambda record: False)
    assert (part / "finished/run.json").exists()
    seen = []
    forget(resume, lambda record: seen.append(record) or True)
    assert seen == ["run/000-001/run.json"]
    assert not list(resume.iterdir())
    assert (job.output / "weights.safetensors").exists()
    (part / "finished").mkdir(parents=True)
    (part / "thesis.txt").touch()
    with pytest.raises(SomaError, match=r"holds `thesis\.txt`"):
        forget(resume, lambda record: True)


def test_killed_at_random_moments(undisturbed, job):
    whole, seconds = undisturbed
    draw, killed, finished = random.Random(0), 0, 0
    while killed < 20 or not finished:
        pid = job.start()
        time.sleep(draw.uniform(0, seconds / 2))
        os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, -9)
        killed += status == -9
        if status == 0:
            assert job.digests() == whole.digests()
            shutil.rmtree(job.output)
            shutil.rmtree(job.resume)
            finished += 1
        assert killed < 200, "it gets nowhere"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system of a given size")
def test_a_disk_that_is_full_when_it_publishes(undisturbed, job):
    whole, _ = undisturbed
    room = (whole.output / PUBLISHED[0]).stat().st_size + (whole.output / PUBLISHED[1]).stat().st_size // 2
    job.output.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(job.output)], check=True)
    try:
        assert job.run() == 1
        assert f"{job.output / PUBLISHED[1]} cannot be written: the disk is full" in job.log.read_text()
        assert [path.name for path in job.output.iterdir()] == [PUBLISHED[0]]
        subprocess.run(["mount", "-o", "remount,size=1m", str(job.output)], check=True)
        assert job.run() == 0
        assert job.digests() == whole.digests()
    finally:
        subprocess.run(["umount", str(job.output)], check=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "shards/train.npy",
            "{} does not have the hash that its manifest records; delete it and run",
        ),
        ("shards/text.bin", "{} does not hold the windows of expert 1 that {}/shards.json records; delete it"),
    ],
)
def test_a_flipped_bit_in_the_data_is_one_sentence(data, tmp_path, caplog, name, said):
    damaged = tmp_path / "data"
    shutil.copytree(data, damaged)
    content = bytearray((damaged / name).read_bytes())
    content[-1] ^= 1
    (damaged / name).write_bytes(content)
    job = Job(tmp_path, damaged)
    words = [word for word in job.words if word not in ("--log", str(job.log))]
    assert main(words) == 1
    [message] = caplog.messages
    assert message.startswith(said.format(damaged / name, damaged / "shards"))
    assert not job.output.exists()
