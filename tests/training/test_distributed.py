"""Distributed perturbations: bytes, whose workers are forks, and what ends workers that torchrun has started."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from soma.cli import main
from soma.files.hashes import sha256_file
from soma.forward import distributed
from soma.training.checkpoint import load_tensors
from soma.training.names import LEG, MILESTONES, PREVIOUS, WEIGHTS
from tests.training import forks
from tests.training.distributed_runs import command, sessions, train, words_of, write_inputs
from tests.training.nodes import Nodes
from tests.training.small_runs import EGGROLL, spec, trainer


@pytest.mark.parametrize(("n", "of"), [(7, 3), (8, 4), (2, 4), (5, 1)])
def test_every_direction_has_one_worker(n, of):
    shares = [distributed.share(n, worker, of) for worker in range(of)]
    assert [d for share in shares for d in share] == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("ddpp"))


@pytest.mark.parametrize(
    ("run", "engine", "counts"),
    [
        ("long", "auto", (1, 2, 3, 4)),
        ("short", "torch", (1, 3)),
        ("group", "auto", (1, 3)),
    ],
)
def test_any_number_of_workers_gives_the_same_bytes(inputs, run, engine, counts):
    folders = {w: train(inputs, run, f"{run}-{engine}{w}", w, engine=engine) for w in counts}
    hashes = {w: tuple(sha256_file(folder / f) for f in (WEIGHTS, MILESTONES)) for w, folder in folders.items()}
    assert len(set(hashes.values())) == 1, hashes
    assert json.loads((folders[3] / "cost.json").read_text())["devices"] == 3


def wait_for_session(folder, name, session, is_over=lambda: False):
    """Wait until the state of a run holds that number of sessions, or `is_over()`; return the state's path."""
    state = folder / f"resume-{name}/state.safetensors"
    deadline = time.monotonic() + 90
    while sessions(state) != session and not is_over():
        assert time.monotonic() < deadline, f"{name} saves no state"
        time.sleep(0.01)
    return state


def ended(folder, workers, session, end):
    """Return the message of the run `lost`, ended by `end(process)` once its state holds that number of sessions."""
    environment, said = {"TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}, folder / "lost.log"
    torchrun = forks.start(words_of(folder, "long", "lost", workers, {"save_every": 1e-6}), environment)
    state = wait_for_session(folder, "lost", session, lambda: not runs(Path(f"/proc/{torchrun}")))
    end(torchrun)
    assert forks.status(torchrun) != 0, said.read_text()[-2000:]
    assert not (folder / "out-lost").exists()
    load_tensors(state if state.exists() else state.with_name(PREVIOUS))  # a whole one
    assert not re.search(r'File ".*/soma/\w', said.read_text()), said.read_text()  # traces of torchrun's own code alone
    return said.read_text()


def workers_of(torchrun):
    children = subprocess.run(["pgrep", "-P", str(torchrun)], capture_output=True, text=True, check=True)
    return [*map(int, children.stdout.split())]


def kill_the_parent(torchrun):
    """Kill torchrun, which leaves its workers no time to be told."""
    workers = [Path(f"/proc/{child}") for child in workers_of(torchrun)]
    os.kill(torchrun, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while any(map(runs, workers)):
        assert time.monotonic() < deadline, "a worker outlives torchrun"
        time.sleep(0.01)


def runs(process):
    """Tell if a process runs; the body of a dead one may wait for its parent."""
    try:
        return "State:\tZ" not in (process / "status").read_text()
    except OSError:
        return False


def kill(rank):
    """Ends a run by killing the worker of that rank."""

    def end(torchrun):
        for child in workers_of(torchrun):
            if f"\0RANK={rank}\0".encode() in Path(f"/proc/{child}/environ").read_bytes():
                os.kill(child, signal.SIGKILL)

    return end


def test_whatever_ends_a_worker_any_number_of_them_continues_the_run(inputs):
    """It loses its last worker, then the one that writes, then is asked to stop, and ends as an undisturbed one."""
    lost = r"worker {} of {} lost the others \(.+\); start the job again, with any number of workers, and it continues"
    said = ended(inputs, 2, 1, kill(1))
    assert re.search(lost.format(0, 2), said), said
    said = ended(inputs, 3, 2, kill(0))
    assert "continuing after update" in said
    assert re.search(lost.format("[12]", 3), said), said
    ended(inputs, 2, 3, kill_the_parent)
    said = ended(inputs, 2, 4, lambda torchrun: os.kill(torchrun, signal.SIGTERM))
    assert re.search(r"r: stopped after update \d+ of 200; state saved; start it again to continue\.", said), said
    assert "lost the others" not in said
    assert forks.status(forks.start(words_of(inputs, "long", "lost", 2, {}))) == 0
    whole, again = train(inputs, "long", "long-auto1", 1, engine="auto"), inputs / "out-lost"
    for file in (WEIGHTS, MILESTONES):
        assert sha256_file(again / file) == sha256_file(whole / file)
    assert len(json.loads((again / "cost.json").read_text())["ledger"]["sessions"]) == 5


@pytest.fixture
def nodes(tmp_path):
    made = Nodes(tmp_path)
    try:
        if reason := made.start():
            pytest.skip(reason)
        yield made
    finally:
        made.stop()


class OnNodes:
    """The run `cut` on two nodes."""

    def __init__(self, nodes, folder, workers, **compute):
        self.folder, self.state = folder, folder / "resume-cut/state.safetensors"
        words = [*command(folder, "long", "cut", workers, {"save_every": 1e-6} | compute), "--nodes", "2"]
        environment = nodes.environment | {"TORCHELASTIC_ERROR_FILE": str(folder / "error.json")}
        self.process = subprocess.Popen(nodes.on("one", *words), env=environment)

    def wait_for(self, session):
        """Wait until the state holds this number of sessions."""
        wait_for_session(self.folder, "cut", session, lambda: self.process.poll() is not None)
        assert self.process.poll() is None, self.said()[-3000:]

    def said(self):
        self.process.wait(timeout=120)
        return (self.folder / "cut.log").read_text()


LOST_ON_NODES = r"worker [01] of 2 lost the others \(.+\); start the job again, with any number of workers"


def test_what_happens_to_two_nodes(nodes, inputs):
    """A cable is out for a moment, a worker is killed, the cable is out for good; the run ends as undisturbed.

    A process takes seconds to start, so that only the job that ends has two workers on each node.
    """
    job = OnNodes(nodes, inputs, 2)
    job.wait_for(1)
    nodes.plug("down")
    time.sleep(1)
    held = job.state.stat().st_mtime_ns
    time.sleep(1)
    assert job.state.stat().st_mtime_ns == held, "the nodes do not need their cable"
    nodes.plug("up")
    deadline = time.monotonic() + 60
    while not job.state.exists() or job.state.stat().st_mtime_ns == held:
        assert job.process.poll() is None, job.said()[-3000:]
        assert time.monotonic() < deadline, "the run does not go on"
        time.sleep(0.01)
    os.kill(nodes.workers("two")[0], signal.SIGKILL)
    said = job.said()
    assert re.search(LOST_ON_NODES, said), said[-3000:]

    job = OnNodes(nodes, inputs, 2, wait=5)
    job.wait_for(2)
    nodes.plug("down")
    said = job.said()
    assert re.search(LOST_ON_NODES, said), said[-3000:]
    assert not re.search(r'File ".*/soma/\w', said), said
    nodes.plug("up")

    job = OnNodes(nodes, inputs, 4, save_every=60)
    said = job.said()
    assert job.process.returncode == 0, said[-3000:]
    assert "4 worker(s) on 2 nodes" in said
    whole = train(inputs, "long", "long-auto1", 1, engine="auto")
    for file in (WEIGHTS, MILESTONES):
        assert sha256_file(inputs / "out-cut" / file) == sha256_file(whole / file)
    assert len(json.loads((inputs / "out-cut/cost.json").read_text())["ledger"]["sessions"]) == 3


def test_several_nodes_need_slurm(inputs, monkeypatch, caplog):
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    assert main([*words_of(inputs, "long", "nowhere", 4, {}), "--nodes", "2"]) == 1
    [message] = caplog.messages
    assert re.search(r"4 workers on 2 nodes, which only Slurm can start; submit it with .*\.$", message)


def test_a_population_continues_with_the_states_of_all_workers(inputs):
    """Each worker has the states of its own members; they come together in what is saved."""
    cut = forks.Workers(words_of(inputs, "population", "cut-population", 3, {"save_every": 1e-6}), 3)
    wait_for_session(inputs, "cut-population", 1)
    for pid in cut.pids:
        os.kill(pid, signal.SIGTERM)
    assert cut.statuses() == [1] * 3
    assert not (inputs / "out-cut-population").exists()
    whole, again = train(inputs, "population", "whole", 1), train(inputs, "population", "cut-population", 2)
    for file in (WEIGHTS, MILESTONES, LEG):
        assert sha256_file(again / file) == sha256_file(whole / file)
    assert len(json.loads((again / "cost.json").read_text())["ledger"]["sessions"]) == 2


def test_workers_divide_a_population_by_blocks(monkeypatch):
    """Each computes blocks that one worker would compute as well, and so the same bytes on engines in torch too."""
    population = EGGROLL | {"population": 72, "pair_chunk": 8}
    learner = trainer(spec(method="eggroll", experts=1, start="random", eggroll=population), range(1)).learner
    for workers in (1, 2, 3, 7):
        monkeypatch.setattr(distributed, "workers", lambda workers=workers: workers)
        shares = [learner._pairs(worker) for worker in range(workers)]
        assert [block for pairs in shares for block in learner.rule.blocks(pairs)] == [*learner.rule.blocks()]
