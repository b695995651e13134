"""The kernel of the page equals the product's: its losses, probabilities and random numbers, in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest
import torch

from soma.inference.compiled import CompiledRunner, available
from soma.models.experts import Experts
from soma.models.lstm import initialise
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream
from soma.web.kernel import COMPILER, KERNEL, build

TEXTS = (b"x", b"\xff\xfe\x80 not UTF-8 \xc3", "Fellow citizens – a text.".encode(), bytes(range(256)) * 40)
POSITIONS = [0, 1, 4095, 2**32 - 1]


def experts(spec: LSTMSpec, count: int, shared: bool) -> Experts:
    drawn = [initialise(spec, Stream.named(e, "page")) for e in range(count)]
    heads = 2 * torch.stack([head for _, head in drawn])  # predictions far from uniform
    return Experts.of(spec, torch.stack([body for body, _ in drawn]), heads[:1].clone() if shared else heads)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not available(), reason="the inference kernel is not built")
@pytest.mark.parametrize(("spec", "shared"), [(LSTMSpec(28, 2, 16), True), (LSTMSpec(13, 1, 13), False)])
def test_losses_probabilities_and_random_numbers_are_the_command_line_s(
    spec: LSTMSpec, shared: bool, tmp_path: Path
) -> None:
    model, chosen = experts(spec, 3, shared), [0, 2]
    model.theta.numpy().tofile(tmp_path / "bodies")
    model.distinct_heads.numpy().tofile(tmp_path / "heads")
    stream = Stream.named(7, "sample")
    asked = {
        "wasm": str(KERNEL),
        "sizes": {"width": spec.width, "depth": spec.depth, "embedding": spec.embedding, "experts": 3},
        "bodies": str(tmp_path / "bodies"),
        "heads": str(tmp_path / "heads"),
        "experts": chosen,
        "texts": [text.hex() for text in TEXTS],
        "key": str(stream.key),
        "positions": POSITIONS,
    }
    program = Path(__file__).with_name("kernel.mjs")
    answer = json.loads(
        subprocess.run(["node", program], input=json.dumps(asked).encode(), capture_output=True, check=True).stdout
    )
    runner = CompiledRunner(model)
    for text, given in zip(TEXTS, answer["answers"], strict=True):
        tokens = np.frombuffer(text, np.uint8)
        both = np.broadcast_to(tokens, (2, len(text)))
        probabilities = runner.advance(np.array(chosen), both, runner.start(2))
        np.testing.assert_allclose(np.reshape(given["probabilities"], (2, 256)), probabilities, rtol=0, atol=1e-5)
        if len(text) > 1:
            losses = runner.losses(np.array(chosen), np.zeros(2, int), tokens[None], len(text) - 1)
            np.testing.assert_allclose(np.reshape(given["losses"], (2, -1)), losses, rtol=0, atol=1e-5)
    assert answer["uniform"] == [stream.uniform(1, update=position)[0] for position in POSITIONS]
    assert answer["refused"] == "the kernel was given arguments that do not fit the model"


def compiler() -> str | None:
    try:
        return version("ziglang")
    except PackageNotFoundError:
        return None


@pytest.mark.skipif(compiler() != COMPILER, reason=f"ziglang {COMPILER} is not installed (pip install --group demo)")
def test_the_committed_kernel_is_what_the_source_makes(tmp_path: Path) -> None:
    build(tmp_path / "kernel.wasm")
    assert (tmp_path / "kernel.wasm").read_bytes() == KERNEL.read_bytes()
