"""benchmarks/peers.py: its peers compute what we do, and docs/engines.md shows what it measured."""

import importlib.util
import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from soma.estimators import bptt
from soma.models.experts import Experts
from soma.models.lstm import initialise
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def peers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
        spec = importlib.util.spec_from_file_location("peers", ROOT / "benchmarks/peers.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def test_readme_shows_the_recorded_measurements(peers):
    result = json.loads((ROOT / "benchmarks/peers.json").read_text())
    assert peers.table(result) in (ROOT / "docs/engines.md").read_text(), "run `python benchmarks/peers.py --page`"
    assert result["machine"]["jax"], "the strongest peer is missing"
    for row in result["losses"] + result["gradients"]:
        assert max(row["largest_difference"].values()) <= peers.TOLERANCE
        others = {k: v for k, v in row["times_ours"].items() if k not in ("torch_engine", "autograd")}
        assert row["times_ours"][row["best_peer"]] == min(others.values())


def test_every_gradient_is_compared_with_ours(peers):
    spec = LSTMSpec(8, embedding=8)
    bodies, heads = zip(*(initialise(spec, Stream.named(e, "peers")) for e in range(2)), strict=True)
    experts = Experts(spec, torch.stack(bodies), torch.stack(heads))
    tokens = Stream.named(0, "bytes").integers(2 * 3 * 9, 256).astype(np.uint8).reshape(2, 3, 9)

    def ours():
        return bptt.gradient(experts, [tokens], "full")

    row = peers.compare(ours, peers.gradient_peers(experts, tokens), 1)
    assert row["times_ours"].keys() >= {"autograd", "nn_lstm"}

    def wrong():
        body, head, losses = ours()
        return body * 1.001, head, losses

    with pytest.raises(SystemExit, match="do not compute the same"):
        peers.compare(ours, {"wrong": wrong}, 1)


def test_jax_is_neither_installed_nor_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert [r.split(">")[0] for r in project["dependency-groups"]["peers"]] == ["jax"]
    assert "\njax" not in (ROOT / "requirements.lock").read_text()
