"""Runs that several processes share, as commands, on a small text."""

import sys
from pathlib import Path

from soma.config.data import Data, TextSource
from soma.data.download import download
from soma.data.encode import encode
from soma.data.shards import build_shards
from soma.data.windows import TrainWindows, expert_validation_mask
from soma.files.atomic import write_json
from soma.numerics.rng import Stream
from soma.training.checkpoint import load_tensors
from tests.project import ROOT
from tests.training import forks
from tests.training.small_runs import EGGROLL, spec


def write_inputs(folder: Path) -> Path:
    """Write a small encoded corpus with its shards, and runs: `short`, `long` (enough to be ended) and others."""
    (folder / "text").mkdir()
    license_ = (ROOT / "LICENSE").read_text()
    for i in range(3):
        (folder / f"text/{i}.txt").write_text(license_ * 3)
    source = TextSource(source="text", path=str(folder / "text"))
    download(source, folder / "source")
    encode("train", Data(train=source), folder / "source", folder / "train")
    corpus = TrainWindows(folder / "train", 64)
    n = len(corpus)
    mask = expert_validation_mask(n, 0.1, Stream.named(0, "expert-validation"))
    build_shards("iid", 1, corpus, mask, 0, folder / "shards")
    for name, updates in (("short", 20), ("long", 200)):
        run = spec(experts=1, updates=updates, n_pert=5, accumulation=2)
        write_json(folder / f"{name}.json", run.model_dump(mode="json"))
    write_json(folder / "group.json", spec(updates=20, n_pert=5, partition="iid").model_dump(mode="json"))
    population = EGGROLL | {"population": 72, "pair_chunk": 8}  # its last block is short
    run = spec(method="eggroll", experts=1, start="random", eggroll=population, updates=150, leg=149)
    write_json(folder / "population.json", run.model_dump(mode="json"))
    return folder


def words_of(folder, run, name, workers, compute):
    """Arguments of `soma` that train a run."""
    write_json(folder / f"compute-{name}.json", compute)
    return [
        "train", "--log", str(folder / f"{name}.log"),
        "--settings", str(folder / f"{run}.json"), "--part", "000-001" if run == "group" else "000-000",
        "--train", str(folder / "train"), "--shards", str(folder / "shards"), "--runs", str(folder),
        "--resume", str(folder / f"resume-{name}"), "--output", str(folder / f"out-{name}"),
        "--compute", str(folder / f"compute-{name}.json"), "--threads", "1", "--workers", str(workers),
    ]  # fmt: skip


def command(*run):
    return [sys.executable, "-m", "soma.cli", *words_of(*run)]


def train(folder, run, name, workers, **compute):
    """The folder of a trained run; the same name is trained once. Workers are forks, without torchrun."""
    output = folder / f"out-{name}"
    if not output.exists():
        trained = forks.Workers(words_of(folder, run, name, workers, compute), workers).statuses()
        assert trained == [0] * workers, (folder / f"{name}.log").read_text()[-3000:]
    return output


def sessions(state):
    """Count the sessions of a state that is replaced meanwhile: safetensors opens a file by its name twice."""
    same = state.parent.with_name("same.safetensors")
    same.unlink(missing_ok=True)
    try:
        same.hardlink_to(state)
    except FileNotFoundError:  # between two generations there is only the previous one
        return 0
    return len(load_tensors(same)[1]["ledger"]["sessions"])
