"""Small runs on the license, trained inside the process."""

import hashlib

import numpy as np
import pytest
import torch

from soma.config.training import Training
from soma.data.windows import Rows
from soma.forward.registry import create
from soma.runs import RunSpec
from soma.training.learner import Group, Shard, learner_of
from soma.training.loop import Interrupted, Trainer
from soma.training.states import States
from tests.project import ROOT

TEXT = np.frombuffer((ROOT / "LICENSE").read_bytes(), np.uint8)
WINDOW = 64
SETTINGS = {
    "width": 8, "depth": 1, "embedding": 8, "n_pert": 4, "batch": 4, "crop": 16, "lr": 0.02, "eps": 0.01,
}  # fmt: skip
EGGROLL = {"population": 64, "streams": 4, "tokens": 16, "alpha": 0.5, "step": 0.1, "pair_chunk": 8}


WINDOWS = Rows(TEXT, WINDOW, WINDOW)
"""The license, cut into windows."""


def spec(**changes):
    """Describe a run of two experts and twelve updates; changes are of settings and of some of its facts."""
    settings = SETTINGS | {"plateau": {"every": 3, "patience": 4, "windows": 2}, "updates": 12, "experts": 2}
    facts = {"id": "r", "kind": "arm", "seed": 3, "start": None, "shards": "iid-n1", "window": WINDOW}
    facts |= {key: changes.pop(key) for key in ("kind", "seed", "keep_memory", "may_fail", "leg") if key in changes}
    training = Training.model_validate(settings | changes)
    budget = training.updates
    return RunSpec(**facts, settings=training, milestones=tuple(sorted({budget // 2, budget})))


IDS = np.arange((len(TEXT) - 1) // WINDOW, dtype=np.uint32)
SHARDS = [
    Shard(WINDOWS, IDS[0::2], np.array([1, 3], np.uint32)),
    Shard(WINDOWS, IDS[1::2], np.array([0, 2], np.uint32)),
]


def trainer(run, experts=range(2), start=None, engine="torch"):
    """Return the trainer of some experts before their first update."""
    shards = [SHARDS[e] for e in experts]
    group = Group(run, experts, shards, TEXT)
    return Trainer(learner_of(run.settings.method)(group, create(engine), torch.device("cpu"), start))


def trained(run, experts=range(2), start=None, engine="torch"):
    """Train to the end of the budget."""
    t = trainer(run, experts, start, engine)
    t.train(lambda: None)
    return t.progress


def digest(progress):
    """Hash all that a run leaves."""
    out = hashlib.sha256()
    for name in sorted(progress.kept):
        out.update(name.encode() + progress.kept[name].numpy().tobytes())
    for name, rows in sorted(progress.history.tensors().items()):
        out.update(name.encode() + rows.numpy().tobytes())
    return out.hexdigest()


def drawn(progress):
    """The chains of data and probes in every row of the history."""
    table = progress.history.table()
    return [*zip(table["data_sha256"].to_pylist(), table["probes_sha256"].to_pylist(), strict=True)]


def states(folder, run="run", engine="torch"):
    return States(folder, {"run": run, "engine": engine})


def assert_resumed(folder, run, start, stop_at, engine="torch"):
    """Assert that a run that stops once and is started again ends as one that never stopped."""
    whole = trained(run, range(run.experts), start=start, engine=engine)
    first = trainer(run, range(run.experts), start=start, engine=engine)
    with pytest.raises(Interrupted):
        first.train(lambda: states(folder).save(first), should_stop=lambda: first.progress.update == stop_at)
    second = trainer(run, range(run.experts), start=start, engine=engine)
    assert states(folder).restore(second)
    assert second.progress.update == stop_at
    second.train(lambda: None)
    assert digest(second.progress) == digest(whole)
