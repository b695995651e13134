"""Steps as forks of a server (`soma.cli.forks`): to whoever started them, they are the commands themselves."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from soma.cli import forks
from tests.training.license_job import Job, write_inputs
from tests.workflow.processes import processes_that_open, wait_for

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux can wait for a fork and its client")

_OWNER = """
import os, sys
from soma.cli import forks
forks.start()
print(os.environ[forks.VARIABLE], flush=True)
sys.stdin.read()
"""


@contextmanager
def owning():
    """Yield a process that has started a server, as Snakemake does, and the environment of its jobs."""
    alone = {name: value for name, value in os.environ.items() if name != forks.VARIABLE}
    words = [sys.executable, "-c", _OWNER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=alone) as process:
        yield process, alone | {forks.VARIABLE: process.stdout.readline().strip()}
        process.kill()


@pytest.fixture(scope="module")
def environment():
    """Yield the environment of jobs for which there is a server."""
    with owning() as (_, environment):
        yield environment


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def endless(tmp_path_factory) -> Path:
    """Return the inputs of a job that outlives every test."""
    return write_inputs(tmp_path_factory.mktemp("endless"), updates=10**6)


def command(job: Job) -> list[str]:
    return [sys.executable, "-m", "soma.cli", *job.words]


def start(job: Job, environment: dict[str, str]) -> tuple[subprocess.Popen, int]:
    """Start a job and wait for its first state; return the client and the process id of the fork."""
    client = subprocess.Popen(command(job), env=environment, stderr=subprocess.PIPE, text=True)
    wait_for(job.state.exists)
    [fork] = processes_that_open(job.log)
    assert fork != client.pid
    return client, fork


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_fork_does_what_the_command_does(environment, inputs, tmp_path):
    alone, forked, again = (Job(tmp_path / name, inputs) for name in ("alone", "forked", "again"))
    assert alone.run() == 0
    for job in (forked, again):
        done = subprocess.run(command(job), env=environment, check=True, capture_output=True, text=True)
        assert job.digests() == alone.digests()
        assert done.stderr == ""
        assert "update 30/30" in job.log.read_text()
        assert done.stdout == ""


def test_a_step_that_fails_in_a_fork_is_one_sentence_and_the_server_goes_on(environment, inputs, tmp_path):
    job = Job(tmp_path, inputs)
    wrong = [str(tmp_path / "none.json") if word.endswith("settings.json") else word for word in command(job)]
    done = subprocess.run(wrong, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == ""  # Snakemake shows the end of the log
    [line] = job.log.read_text().splitlines()
    assert f"{tmp_path / 'none.json'} is missing" in line
    assert subprocess.run(command(job), env=environment, check=False, capture_output=True).returncode == 0


def test_a_fork_that_is_told_to_stop_saves_and_ends(environment, endless, tmp_path):
    """Through its client, which is all that Snakemake and Slurm know."""
    job = Job(tmp_path, endless)
    client, fork = start(job, environment)
    client.terminate()
    client.communicate(timeout=60)
    assert client.returncode == 1
    assert "state saved; start it again to continue." in job.log.read_text()
    assert not is_running(fork)


def test_a_fork_that_is_killed_ends_its_client(environment, endless, tmp_path):
    client, fork = start(Job(tmp_path, endless), environment)
    os.kill(fork, signal.SIGKILL)
    client.communicate(timeout=60)
    assert client.returncode == 128 + signal.SIGKILL


def test_a_client_that_is_killed_takes_its_fork_with_it(environment, endless, tmp_path):
    """If the fork lived, it and the job that Snakemake starts in its place would write the same state."""
    client, fork = start(Job(tmp_path, endless), environment)
    client.kill()
    client.communicate()
    wait_for(lambda: not is_running(fork))


def test_forks_save_and_end_when_their_owner_is_killed(inputs, endless, tmp_path):
    """And a job that comes later runs by itself."""
    with owning() as (process, environment):
        job = Job(tmp_path / "running", endless)
        client, fork = start(job, environment)
        socket = Path(environment[forks.VARIABLE])
        assert socket.exists()
        process.kill()
        client.communicate(timeout=60)
    assert client.returncode == 1
    assert "state saved" in job.log.read_text()
    assert not is_running(fork)
    wait_for(lambda: not socket.parent.exists())
    later = command(Job(tmp_path / "later", inputs))
    assert subprocess.run(later, env=environment, check=False, capture_output=True).returncode == 0


def test_a_job_for_another_number_of_threads_runs_by_itself(environment, inputs, tmp_path):
    """Libraries read these variables when they are imported, which is before the fork."""
    report = [sys.executable, "-c", _WHO, *Job(tmp_path / "one", inputs).words]
    first = json.loads(subprocess.run(report, env=environment, check=True, capture_output=True).stdout)
    report = [sys.executable, "-c", _WHO, *Job(tmp_path / "two", inputs).words]
    many = environment | {"OMP_NUM_THREADS": f"{int(environment.get('OMP_NUM_THREADS', 1)) + 1}"}
    second = json.loads(subprocess.run(report, env=many, check=True, capture_output=True).stdout)
    assert first == [0, False]  # the client has not trained itself
    assert second == [0, True]


_WHO = """
import json, sys
from soma.cli import main
print(json.dumps([main(sys.argv[1:]), "torch" in sys.modules]))
"""
