"""Distributed perturbations through torchrun and gloo, as the workflow starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from soma.data.download import download
from soma.data.encode import encode
from soma.data.windows import TrainWindows, expert_validation_mask
from soma.forward.distributed import _share
from soma.manifest import sha256_file, write_json
from soma.rng import Stream
from soma.routing.shards import build_shards
from soma.settings.data import Data, TextSource
from soma.training.checkpoint import MILESTONES, WEIGHTS, load_tensors
from tests.training.test_loop import spec

root_folder = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(("n", "of"), [(7, 3), (8, 4), (2, 4), (5, 1)])
def test_every_direction_has_one_worker(n, of):
    shares = [_share(n, worker, of) for worker in range(of)]
    assert [d for share in shares for d in share] == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A small encoded corpus with its shards, a run of 20 updates, and a function that trains it with W workers."""
    folder = tmp_path_factory.mktemp("ddpp")
    (folder / "text").mkdir()
    license_ = (root_folder / "LICENSE").read_text()
    for i in range(3):
        (folder / f"text/{i}.txt").write_text(license_ * 3)
    source = TextSource(source="text", path=str(folder / "text"))
    download(source, folder / "source")
    encode("train", Data(train=source), folder / "source", folder / "train")
    n = len(TrainWindows(folder / "train", 64))
    mask = expert_validation_mask(n, 0.1, Stream.named(0, "expert-validation"))
    build_shards("iid", 1, mask, 0, folder / "shards")
    run = spec(experts=1, updates=20, n_pert=5, accumulation=2)
    write_json(folder / "run.json", run.model_dump(mode="json"))
    return folder


def command(folder, name, workers, compute):
    write_json(folder / f"{name}.json", compute)
    return [
        sys.executable, "-m", "soma.cli", "train", "--log", str(folder / f"{name}.log"),
        "--settings", str(folder / "run.json"), "--part", "000-000",
        "--train", str(folder / "train"), "--shards", str(folder / "shards"), "--runs", str(folder),
        "--resume", str(folder / f"resume-{name}"), "--output", str(folder / f"out-{name}"),
        "--compute", str(folder / f"{name}.json"), "--threads", "1", "--workers", str(workers),
    ]  # fmt: skip


def train(folder, name, workers, **compute):
    done = subprocess.run(
        command(folder, name, workers, compute), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / f"out-{name}"


@pytest.mark.parametrize(("engine", "counts"), [("auto", (1, 2, 3, 4)), ("torch", (1, 3))])
def test_any_number_of_workers_gives_the_same_bytes(inputs, engine, counts):
    folders = {w: train(inputs, f"{engine}{w}", w, engine=engine) for w in counts}
    hashes = {w: tuple(sha256_file(folder / f) for f in (WEIGHTS, MILESTONES)) for w, folder in folders.items()}
    assert len(set(hashes.values())) == 1, hashes
    assert json.loads((folders[3] / "cost.json").read_text())["devices"] == 3


def test_dense_exchange_is_the_same_estimate_up_to_rounding(inputs):
    one, dense = train(inputs, "seeds1", 1), train(inputs, "dense2", 2, exchange="dense")
    a, b = (load_tensors(folder / WEIGHTS)[0] for folder in (one, dense))
    for name, tensor in a.items():
        assert np.allclose(tensor.numpy(), b[name].numpy(), rtol=1e-3, atol=1e-4), name


def test_a_lost_worker_ends_the_run_and_another_number_of_workers_continues_it(inputs):
    """The run is long enough to lose a worker in; its end must be that of an undisturbed one."""
    run = spec(experts=1, updates=400, n_pert=4)
    write_json(inputs / "run.json", run.model_dump(mode="json"))
    try:
        whole = train(inputs, "whole", 1)
        environment = os.environ | {"TORCHELASTIC_ERROR_FILE": str(inputs / "error.json")}
        process = subprocess.Popen(
            command(inputs, "lost", 3, {"save_every": 0.01}), stderr=subprocess.PIPE, text=True, env=environment
        )
        state = inputs / "resume-lost/state.safetensors"
        deadline = time.monotonic() + 90
        while not state.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
        os.kill(int(children.stdout.split()[-1]), signal.SIGKILL)
        _, errors = process.communicate(timeout=120)
        assert process.returncode != 0
        assert not (inputs / "out-lost").exists()
        assert state.exists(), errors[-2000:]
        again = train(inputs, "lost", 2)
        assert sha256_file(again / WEIGHTS) == sha256_file(whole / WEIGHTS)
    finally:
        write_json(inputs / "run.json", spec(experts=1, updates=20, n_pert=5, accumulation=2).model_dump(mode="json"))
