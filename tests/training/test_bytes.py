"""The same bytes on every processor: weights, optimiser state and history after 20 updates, against committed hashes.

The kernels of every instruction set that this machine runs, and those of every other compiler found here, must give
the hashes in bytes.json, which were first made on a processor with AVX-512: no tolerance. After a change that is meant
to change bytes, `python -m tests.training.test_bytes` writes the file again; say why in LOG.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from soma.config.training import Training
from soma.data.windows import Rows
from soma.forward import cpu, native
from soma.runs import RunSpec
from soma.training.learner import Group, Shard, learner_of
from soma.training.loop import Trainer
from tests.compilers import COMPILERS, compiled
from tests.project import ROOT
from tests.training.small_runs import TEXT, drawn

HASHES = Path(__file__).with_name("bytes.json")
WINDOW = 40

# Odd numbers of sequences, bytes and units, so that every vector width has lanes, rows and steps left over.
BASE = {
    "width": 15, "embedding": 20, "experts": 2, "n_pert": 3, "batch": 5, "crop": 11, "lr": 0.02, "eps": 0.01,
    "head_lr": 0.02, "start": "random", "updates": 20, "milestones": [1.0],
    "plateau": {"every": 4, "patience": 4, "windows": 3},
}  # fmt: skip
CASES: dict[str, dict[str, object]] = {
    f"{head} {loss} {probe}": {"head": head, "loss": loss, "probe": probe}
    for head in ("local", "shared-frozen")
    for loss in ("independent", "summed")
    for probe in ("sparse", "dense", "gaussian")
}
CASES |= {difference: {"difference": difference} for difference in ("one-sided", "curvature", "alternating")}
CASES |= {
    "accumulation": {"accumulation": 2},
    "no projections": {"width": 20},
    "more sequences than lanes": {"batch": 37, "n_pert": 2, "experts": 1},
    "large logits": {"lr": 1.0, "head_lr": 1.0, "experts": 1},
}
_POPULATION = {"population": 36, "streams": 3, "tokens": 11, "alpha": 0.5, "step": 0.1, "step_halved_at": "plateau"}
EGGROLL: dict[str, dict[str, object]] = {
    f"eggroll {nonlinearity} {state}": {
        "method": "eggroll", "experts": 1, "eggroll": _POPULATION | {"nonlinearity": nonlinearity, "state": state},
    }
    for nonlinearity, state in (("clip", "carry"), ("sigmoid_tanh", "pair_shared"))
}  # fmt: skip
CASES |= EGGROLL


def train(case: str, engine: cpu.CpuEngine) -> Trainer:
    """Take 20 updates."""
    settings = Training.model_validate(BASE | CASES[case])
    run = RunSpec(
        id="r", kind="arm", seed=1, start=None, shards="clusters-n2", window=WINDOW, settings=settings, milestones=(20,)
    )  # fmt: skip
    ids = np.arange((len(TEXT) - 1) // WINDOW, dtype=np.uint32)
    shards = [Shard(Rows(TEXT, WINDOW, WINDOW), ids[e + 3 :: 2], ids[:3]) for e in range(run.experts)]
    group = Group(run, range(run.experts), shards, TEXT)
    trainer = Trainer(learner_of(settings.method)(group, engine, torch.device("cpu")))
    trainer.train(lambda: None)
    return trainer


def digest(case: str, engine: cpu.CpuEngine) -> str:
    """Hash all that 20 updates leave."""
    trainer = train(case, engine)
    learner, progress = trainer.learner, trainer.progress
    out = hashlib.sha256()
    for tensors in (learner.weights, learner.memory, progress.average):
        for name in sorted(tensors):
            out.update(tensors[name].numpy().tobytes())
    out.update(progress.history.numbers.tobytes())
    out.update(repr((drawn(progress), progress.schedule)).encode())
    return out.hexdigest()


INSTALLED = [isa for isa in native.INSTRUCTION_SETS if cpu.library(isa) is not None]


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


KNOWN = json.loads(HASHES.read_text())
SLOW = ("local independent sparse", "shared-frozen summed gaussian", "curvature", "large logits", *EGGROLL)
"""Cases for a kernel that emulates fused multiply-add."""


def test_cases_decide_by_validation_losses_and_reach_large_logits():
    """Otherwise the hashes would not cover the schedule, or the pass that guards exponentials."""
    if not INSTALLED:
        pytest.skip("no kernel runs on this machine")
    assert KNOWN.keys() == CASES.keys()
    assert len(set(KNOWN.values())) == len(CASES)
    assert any(state.scale < 1 for state in train("large logits", cpu.CpuEngine()).progress.schedule)
    learner = train("large logits", cpu.CpuEngine()).learner
    hidden = learner.engine.hidden(learner.experts, TEXT[None, None, :40])
    # The bound of csrc/network.h: Cauchy and Schwarz.
    assert hidden.norm(dim=-1).max() * learner.experts.head.norm(dim=-1).max() > 80


@pytest.mark.parametrize("isa", INSTALLED)
def test_every_instruction_set_gives_the_committed_bytes(isa, threads, monkeypatch):
    monkeypatch.setenv("SOMA_CPU_ISA", isa)
    engine = cpu.CpuEngine()
    cases = SLOW if engine.emulated else CASES
    assert {case: digest(case, engine) for case in cases} == {case: KNOWN[case] for case in cases}


LESSER = {
    "ATEN_CPU_CAPABILITY": "default",
    "NPY_DISABLE_CPU_FEATURES": "AVX512_SPR AVX512_ICL AVX512_CLX AVX512_SKX AVX512F AVX2 FMA3 X86_V4 X86_V3",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX512F,-FMA,-FMA4",
}
"""Variables that make torch, numpy and the C library take their code for processors without vector extensions."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these switches are x86's")
def test_libraries_written_for_other_processors_give_the_committed_bytes():
    if not INSTALLED:
        pytest.skip("no kernel runs on this machine")
    command = [sys.executable, "-W", "ignore", "-m", "tests.training.test_bytes", "--print"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | LESSER, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == KNOWN


@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_compiler_gives_the_committed_bytes(compiler, tmp_path):
    """On the two best instruction sets; threads are those of the installed kernels, above."""
    if not INSTALLED:
        pytest.skip("no kernel runs on this machine")
    for isa in INSTALLED[:2]:
        library = compiled(compiler, "soma.forward._cpu", "engine.cpp", isa, tmp_path)
        engine = cpu.CpuEngine(cpu.load(str(library)))
        cases = set(SLOW if engine.emulated else CASES) - EGGROLL.keys()  # tests/forward/test_members.py
        assert {case: digest(case, engine) for case in cases} == {case: KNOWN[case] for case in cases}, isa


if __name__ == "__main__":
    torch.set_num_threads(1)
    text = json.dumps({case: digest(case, cpu.CpuEngine()) for case in CASES}, indent=1) + "\n"
    print(text) if "--print" in sys.argv else HASHES.write_text(text)
