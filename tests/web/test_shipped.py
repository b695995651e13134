"""The page's models equal the command line: those of the reference campaign that `soma demo` shows."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.project import ROOT
from tests.web.in_node import SETTINGS, ask

from soma.commands.export import export
from soma.commands.models import shown
from soma.errors import SomaError
from soma.inference import Ensemble
from soma.inference.score import windows_of

SMALL = ROOT / "results/small"
TEXTS = (
    b"",
    b"x",
    b"... 1 2 3 !? ",
    b"\xff\xfe not \xc3 UTF-8 \xe2\x82 \xf0\x9f\x98\x80 the\xffpeople of the United States",
    b"My fellow citizens, the state of the Union ",
    (ROOT / "docs/paper.md").read_bytes()[:10_000],
)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (SMALL / "measurements/losses.parquet").exists(), reason="results/small is not pulled")
def test_the_shipped_models_are_the_command_line_s(tmp_path: Path) -> None:
    if any(not list((SMALL / "runs" / run).glob("*/weights.safetensors")) for run in shown(SMALL)):
        pytest.skip("the weights of results/small are not pulled")
    for run in shown(SMALL):
        folder = tmp_path / run
        export(SMALL, run, folder, iterate="last", k=None)
        model = Ensemble.load(folder)
        requests = [
            {"text": text.hex(), "k": model.k, "settings": SETTINGS[i % 3], "length": 200}
            for i, text in enumerate(TEXTS)
        ]
        for text, request, given in zip(TEXTS, requests, ask(folder, tmp_path, requests)["answers"], strict=True):
            settings = request["settings"]
            options = {"temperature": settings["temperature"], "top_k": settings["topK"], "top_p": settings["topP"]}
            drawn = b"".join(model.sample(text, 200, seed=settings["seed"], **options))
            assert bytes.fromhex(given["sample"]) == drawn
            if model.router is not None:
                assert tuple(given["route"]["experts"]) == model.route(text).experts
            try:
                rows = list(windows_of(io.BytesIO(text), model.window, model.prefix))
            except SomaError as error:
                assert given["refused"] == str(error)  # noqa: PT017 (the other texts have a score)
                continue
            losses = np.concatenate([model.losses(row).ravel() for row in rows])
            assert np.mean(given["nats"]) == pytest.approx(losses.mean(), abs=1e-6)
            # Without a fused multiply-add, a byte that surprises may round differently by more than the mean does.
            np.testing.assert_allclose(given["nats"], losses, rtol=0, atol=5e-5)
