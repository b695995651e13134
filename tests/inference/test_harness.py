"""The ensemble as a model of the real lm-evaluation-harness."""

from __future__ import annotations

from math import log
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from tests.examples import blocks, imported
from tests.project import ROOT
from tiny_model import Tiny

from soma.errors import SomaError

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'soma-repro[harness]'")
from soma.inference.harness import HarnessModel  # noqa: E402 (imports lm_eval)


def ask(*args: object) -> list[SimpleNamespace]:
    return [SimpleNamespace(args=args)]


def test_perplexity_per_byte_is_that_of_score(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the task file of the documentation, through the harness's own reading and its own metrics."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    text = b" ".join(tiny.texts[:4])
    (tmp_path / "text.txt").write_bytes(text)
    task = yaml.safe_load((ROOT / "docs/harness.yaml").read_text())
    task["dataset_kwargs"]["data_files"]["test"] = str(tmp_path / "text.txt")
    results = lm_eval.simple_evaluate(HarnessModel(tiny.folder), tasks=[task], bootstrap_iters=0)["results"][
        "local_text"
    ]
    score = tiny.ensemble().score(text)
    assert results["bits_per_byte,none"] == pytest.approx(score.bits, rel=1e-12)
    assert results["byte_perplexity,none"] == pytest.approx(np.exp(score.nats), rel=1e-12)


def test_the_example_of_the_documentation_runs(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, place in (("docs", ROOT / "docs"), ("models/soma-n8", tiny.folder)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(place)
    (tmp_path / "text.txt").write_bytes(tiny.texts[0])
    monkeypatch.chdir(tmp_path)
    [code] = (block for block in blocks("inference.md", "python") if "lm_eval" in block)
    imported(code, tmp_path / "example.py")
    assert f"'bits_per_byte,none': {tiny.ensemble().score(tiny.texts[0]).bits:.6f}" in capsys.readouterr().out


def test_a_continuation_is_the_product_of_the_stream(tiny: Tiny) -> None:
    model = HarnessModel(tiny.ensemble())
    stream = tiny.ensemble().generation("The capital of ")
    expected = 0.0
    for byte in "Fránce".encode():
        expected += log(stream.probabilities[byte])
        stream.push(byte)
    [(nats, greedy)] = model.loglikelihood(ask("The capital of ", "Fránce"))
    assert (nats, greedy) == (expected, False)
    [likeliest] = model.generate_until(ask("The capital of ", {"max_gen_toks": 1}))
    assert model.loglikelihood(ask("The capital of ", likeliest))[0][1]
    assert model.loglikelihood(ask("", "x"))[0][0] < 0


def test_generation_ends_before_a_stop(tiny: Tiny) -> None:
    model = HarnessModel(tiny.ensemble())
    sampled = {"do_sample": True, "temperature": 1.0}
    whole = b"".join(tiny.ensemble().sample("The ", 40, seed=0)).decode(errors="replace")
    assert model.generate_until(ask("The ", {**sampled, "max_gen_toks": 40})) == [whole]
    stop = next(c for c in whole[5:] if c.isascii())
    [cut] = model.generate_until(ask("The ", {**sampled, "max_gen_toks": 40, "until": [stop]}))
    assert cut == whole[: whole.index(stop)]
    greedy = b"".join(tiny.ensemble().sample("The ", 20, temperature=0)).decode(errors="replace")
    assert model.generate_until(ask("The ", {"max_gen_toks": 20, "until": []})) == [greedy]


def test_a_text_that_is_too_short_is_one_sentence(tiny: Tiny) -> None:
    with pytest.raises(SomaError, match="too few to score"):
        HarnessModel(tiny.ensemble()).loglikelihood_rolling(ask("short"))
