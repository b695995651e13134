"""The page's model equals the command line, in Node: losses, routes, sampled text, words and refusals."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.inference.tiny_model import EXPERTS, SPEC, Tiny, make_experts, write
from tests.web.in_node import SETTINGS, ask

from soma.errors import SomaError
from soma.inference import Ensemble
from soma.inference.score import windows_of

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def texts(tiny: Tiny) -> list[bytes]:
    article = b"\n\n".join(tiny.texts)
    return [
        b"",
        b"x",
        b" .,;: !?! -- 1 2 3 ... a b c ",
        b"\xff\xfe\xef\xbb\xbfnot \xc3 ut\xe2\x82f-8 \xef\xbf\xbd wo\xefrd \xf0\x9f\x98\x80\xed\xa0\x80 the\xffriver",
        "Ὀδυσσεύς ΣΟΦΟΣ İstanbul naïve e\u0301tude ٣٤ 日本語 x²y".encode(),
        article[:10_000],
        *(article[start : start + 400] for start in range(20_000, 60_000, 2_000)),
    ]


def test_losses_routes_and_samples_are_the_command_line_s(tiny: Tiny, tmp_path: Path) -> None:
    model = Ensemble.load(tiny.folder)
    requests = [
        {"text": text.hex(), "k": k, "settings": SETTINGS[i % 3], "length": 60}
        for i, text in enumerate(texts(tiny))
        for k in (1, 3)
    ]
    answer = ask(tiny.folder, tmp_path, requests)
    for request, given in zip(requests, answer["answers"], strict=True):
        text, averaged, settings = bytes.fromhex(request["text"]), model.with_k(request["k"]), request["settings"]
        route = averaged.route(text)
        assert tuple(given["route"]["experts"]) == route.experts
        cosines = [given["route"]["similarities"][e] for e in route.experts]
        np.testing.assert_allclose(cosines, route.similarities, rtol=0, atol=1e-6)
        options = {"temperature": settings["temperature"], "top_k": settings["topK"], "top_p": settings["topP"]}
        drawn = averaged.sample(text, request["length"], seed=settings["seed"], **options)
        assert bytes.fromhex(given["sample"]) == b"".join(drawn)
        try:
            losses = np.concatenate([averaged.losses(rows).ravel() for rows in batches(text, model)])
        except SomaError as error:
            refused = str(error)
        else:
            refused = ""
            np.testing.assert_allclose(given["nats"], losses, rtol=0, atol=1e-5)
        assert given["refused"] == refused
        assert given["words"] == re.findall(r"\b\w\w+\b", text.decode(errors="ignore").lower())
    prefix_router = tiny.prefix_router()
    assert answer["terms"] == [prefix_router.terms(e, 8) for e in range(EXPERTS)]
    assert re.match(r"the file holds 1,000 of the [\d,]+ bytes of model; it was cut off", answer["cut"])


def batches(text: bytes, model: Ensemble) -> Any:
    return list(windows_of(io.BytesIO(text), model.window, model.prefix))


def test_a_word_adds_to_the_cosine_what_it_adds_in_the_product(tiny: Tiny, tmp_path: Path) -> None:
    text = tiny.texts[5][:200]
    request = {"text": text.hex(), "k": 1, "settings": SETTINGS[0], "length": 0}
    [given] = ask(tiny.folder, tmp_path, [request])["answers"]
    router = tiny.plain_router()
    features = router.features
    tfidf = features._vectoriser.transform([text]).toarray()[0]
    projected = tfidf @ features.components_DV.T - features.mean_D
    added = tfidf * (features.components_DV.T @ router.centroids_KD[0]) / np.linalg.norm(projected)
    expected = {features.words[v]: added[v] for v in np.flatnonzero(tfidf)}
    assert len(expected) > 5
    assert {reason["word"]: reason["added"][0] for reason in given["reasons"]} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_a_model_without_a_router_is_the_command_line_s(tiny: Tiny, tmp_path: Path, shared: bool) -> None:
    experts = make_experts(SPEC, 2, shared=shared)
    write(tmp_path / "plain", experts, tiny.features.parent, k=2, features=None, router=None)
    model, text = Ensemble.load(tmp_path / "plain"), b"A text without a router, but long enough."
    [given] = ask(tmp_path / "plain", tmp_path, [{"text": text.hex(), "k": 2, "settings": SETTINGS[1], "length": 40}])[
        "answers"
    ]
    assert bytes.fromhex(given["sample"]) == b"".join(
        model.sample(text, 40, temperature=0.7, top_k=40, top_p=0.9, seed=12)
    )
    np.testing.assert_allclose(given["nats"], model.losses(np.frombuffer(text, np.uint8)[None])[0], rtol=0, atol=1e-5)
