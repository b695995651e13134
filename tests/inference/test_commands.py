"""The command line: output and errors."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from tiny_model import EXPERTS, PREFIX, SPEC, K, Tiny, make_experts

from soma import cli
from soma.config.training import Training
from soma.files.atomic import read_json, write_json
from soma.files.tables import write_rows
from soma.inference import Ensemble
from soma.runs import RunSpec
from soma.training.checkpoint import ITERATES, publish, tensor_name


@pytest.fixture
def text(tiny: Tiny, tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(b"\n".join(tiny.texts[:5]))
    return path


def soma(tiny: Tiny, *words: object) -> int:
    return cli.main([str(word) for word in (words[0], "--model", tiny.folder, "--threads", 1, *words[1:])])


def test_score(tiny: Tiny, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Ensemble.load(tiny.folder).score(text.read_bytes())
    other = text.with_name("other.txt")
    other.write_bytes(tiny.texts[9])
    assert soma(tiny, "score", text, other) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["file", str(text), str(other), "all"]
    assert f"{expected.nats:.4f}" in lines[1]
    assert f"{expected.bits:.4f}" in lines[1]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert soma(tiny, "score", "--json", "--k", 1, "-") == 0
    row = json.loads(capsys.readouterr().out)
    assert row["nats_per_byte"] == Ensemble.load(tiny.folder, k=1).score(text.read_bytes()).nats
    assert row["bytes"] == expected.bytes


@pytest.mark.parametrize("as_json", [False, True])
def test_a_bad_file_does_not_keep_the_others_from_their_scores(
    tiny: Tiny, text: Path, as_json: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    short, words = text.with_name("short.txt"), ["--json"] if as_json else []
    short.write_text("too short")
    assert soma(tiny, "score", *words, text, short, "none.txt", text.parent, text) == 1
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        assert [json.loads(line)["file"] for line in lines] == [str(text), str(text), "all"]
    else:
        assert [line.split()[0] for line in lines] == ["file", str(text), str(text), "all"]
    for sentence in ("short.txt: the text has 9 bytes", "none.txt cannot be read", "3 of 5 files could not be scored"):
        assert caplog.text.count(sentence) == 1, sentence


def test_pipes_are_read_as_far_as_needed(tiny: Tiny, text: Path) -> None:
    """`yes` never ends; a route needs its first bytes."""
    run, model = f"{sys.executable} -m soma.cli", f"--model {tiny.folder}"
    route = subprocess.run(
        ["sh", "-c", f"yes the people | {run} route {model} -"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert route.stdout.startswith(f"routed on {PREFIX} bytes"), route.stderr
    score = subprocess.run(
        ["sh", "-c", f"cat {text} | {run} score --json {model} -; {run} score {model} - <&-"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert json.loads(score.stdout)["nats_per_byte"] == Ensemble.load(tiny.folder).score(text.read_bytes()).nats
    assert "standard input: it is closed" in score.stderr


def test_sample(tiny: Tiny, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    words = ("--prompt", "The capital", "--length", 80, "--seed", 3)
    drawn = b"".join(Ensemble.load(tiny.folder).sample("The capital", 80, seed=3))
    assert soma(tiny, "sample", *words, "--raw") == 0
    assert capsysbinary.readouterr().out == drawn
    assert soma(tiny, "sample", *words, "--show-experts") == 0
    shown = capsysbinary.readouterr()
    assert shown.out.decode() == drawn.decode(errors="replace") + "\n"
    assert shown.err.startswith(b"\n[byte 11: experts ")
    assert shown.err.count(b"of the drawn bytes") >= K
    assert soma(tiny, "sample", *words, "--raw", "--top-k", 1) == 0
    likeliest = capsysbinary.readouterr().out
    assert soma(tiny, "sample", *words, "--raw", "--temperature", 1e-320) == 0
    assert capsysbinary.readouterr().out == likeliest


def test_route(tiny: Tiny, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert soma(tiny, "route", text, "--terms", 3) == 0
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"routed on {PREFIX} bytes")
    chosen = tiny.plain_router().route([text.read_bytes()], PREFIX, K)[0].tolist()
    assert [int(line.split()[0]) for line in lines] == chosen
    assert all(len(line.split()) == 6 for line in lines)


def test_errors_are_sentences(tiny: Tiny, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    for words, sentence in (
        (("score", tmp_path / "none.txt"), "none.txt cannot be read"),
        (("score", tmp_path), "cannot be read"),
        (("score", empty), "empty.txt: the text is empty"),
        (("score", text, "--k", EXPERTS + 1), f"between 1 and {EXPERTS}"),
        (("score", text, "--threads", 0), "--threads is 0"),
        (("route", empty), "empty.txt: the text is empty"),
        (("sample", "--temperature", -1), "temperature is -1"),
        (("sample", "--length", -1), "--length is -1"),
        (("sample", "--device", "cuda"), "no CUDA device"),
    ):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            assert soma(tiny, *words) == 1
        assert sentence in caplog.text
        assert "Traceback" not in caplog.text
    caplog.clear()
    assert cli.main(["score", "--model", str(tmp_path), str(text)]) == 1
    assert "has no ensemble.json" in caplog.text


def test_help_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    for command, pieces in {
        "score": ("bits per byte", "empty\nstate", "- is standard input"),
        "sample": ("line feed", "--top-p", "chooses again after every byte"),
        "route": ("similarity", "--terms"),
        "export": ("model card", "--campaign"),
    }.items():
        with pytest.raises(SystemExit, match="0"):
            cli.main([command, "--help"])
        out = capsys.readouterr().out
        assert all(piece in out for piece in pieces), command


def test_a_reader_that_goes_away_is_no_error(tiny: Tiny) -> None:
    command = f"{sys.executable} -m soma.cli sample --model {tiny.folder} --length 100000 | head -c 10"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=60)
    assert done.stderr == b""
    assert len(done.stdout) >= 10


def campaign(tiny: Tiny, folder: Path) -> Path:
    """Write the parts of a campaign's results that export reads."""
    settings = Training(experts=EXPERTS, width=SPEC.width, depth=SPEC.depth, embedding=SPEC.embedding, updates=2)
    run = RunSpec(
        id="soma-n5-s0", kind="arm", seed=0, start=None, shards="clusters-n5", window=80, settings=settings,
        milestones=(2,),
    )  # fmt: skip
    experts = make_experts(SPEC, EXPERTS, shared=False)
    tensors = {}
    for e in range(EXPERTS):
        for factor, iterate in enumerate(ITERATES, start=1):
            tensors[tensor_name(e, 2, iterate, "body")] = experts.theta[e] * factor
            tensors[tensor_name(e, 2, iterate, "head")] = experts.head[e] + 0
    part = folder / "runs/soma-n5-s0/000-004"
    part.mkdir(parents=True)
    publish(part, run, "000-004", tensors, "")
    write_json(part / "run.json", {"run": run.model_dump(mode="json"), "weights_sha256": "abc"})
    (folder / "routing").mkdir()
    (folder / "routing/features").symlink_to(tiny.features)
    (folder / "routing/router-n5").symlink_to(tiny.router)
    write_json(folder / "sets/validation.json", {"prefix": PREFIX, "window": 80})
    return folder


def test_export(tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    results, model = campaign(tiny, tmp_path / "results"), tmp_path / "model"
    words = ["export", "--campaign", str(results), "--output", str(model), "--run"]
    assert cli.main([*words, "soma-n5-s0"]) == 0
    loaded, windows = Ensemble.load(model), tiny.windows(4)
    assert loaded.k == 4
    assert loaded.about is not None
    routing = {
        f"routing/{folder.name}": read_json(folder / file)["id"]
        for folder, file in (
            (results / "routing/features", "features.json"),
            (results / "routing/router-n5", "router.json"),
        )
    }
    assert loaded.about.sources == {"soma-n5-s0/000-004": "abc", **routing}
    assert (loaded.losses(windows) == tiny.ensemble(k=4).losses(windows)).all()
    assert "Losses: not measured." in (model / "README.md").read_text()
    assert cli.main([*words, "soma-n5-s0", "--iterate", "average", "--k", "2"]) == 0
    assert (Ensemble.load(model).losses(windows) != tiny.ensemble(k=2).losses(windows)).any()
    (model / "thesis.tex").write_text("years of work")
    assert cli.main([*words, "soma-n5-s0"]) == 1
    assert "model holds `thesis.tex`, which was not made by what would replace this folder" in caplog.text
    assert (model / "thesis.tex").read_text() == "years of work"
    milestones = results / "runs/soma-n5-s0/000-004/milestones.safetensors"
    milestones.unlink()  # as in a campaign that was pulled with DVC
    assert cli.main([*words, "soma-n5-s0", "--iterate", "average"]) == 1
    assert f"`snakemake --cores all --configfile YOURS -- {milestones}` trains the run again" in caplog.messages[-1]
    part = results / "runs/soma-n5-s0/000-004/run.json"
    record = read_json(part)
    write_json(part, record | {"run": record["run"] | {"shards": "clusters-n8", "start": "long-s0"}})
    assert cli.main([*words, "soma-n5-s0"]) == 1
    assert "has the first 5 experts of 8" in caplog.text
    assert "export the run that it continues, long-s0" in caplog.text
    for name in ("../x", "/etc", "a/b", ""):
        assert cli.main([*words, name]) == 1
        assert f"--run is '{name}'" in caplog.messages[-1]
    assert cli.main([*words, "other"]) == 1
    assert "has no trained run `other`" in caplog.text


def test_a_run_that_no_table_shows_has_the_loss_of_its_evaluated_documents(tiny: Tiny, tmp_path: Path) -> None:
    results = campaign(tiny, tmp_path / "results")
    run = {"run": "soma-n5-s0", "set": "test", "split": "", "update": 2, "iterate": "last", "k": 4}
    rows = [run | {"document": d, "nats": 40.0 + d, "bytes": 20} for d in range(12)]
    write_rows(results / "evaluation/test/controls.parquet", pd.DataFrame(rows))
    assert cli.main(["export", "--campaign", str(results), "--run", "soma-n5-s0", "--output", str(tmp_path / "m")]) == 0
    [row] = [line for line in (tmp_path / "m/README.md").read_text().splitlines() if line.startswith("| test ")]
    found = re.fullmatch(r"\| test \| 4 \| (\S+) \[(\S+), (\S+)\] \| 240 \| 12 \|", row)
    assert found is not None
    loss, low, high = map(float, found.groups())
    assert loss == pytest.approx(sum(row["nats"] for row in rows) / 240, abs=1e-4)
    assert 2.0 < low < loss < high < 2.55


def test_a_campaign_s_best_model_becomes_a_page(tiny: Tiny, tmp_path: Path) -> None:
    results = campaign(tiny, tmp_path / "results")
    words = ["demo", "--campaign", str(results), "--output", str(tmp_path / "demo.html")]
    assert cli.main(words) == 1
    row = {"run": "soma-n5-s0", "set": "validation", "split": "", "update": 2, "iterate": "last", "k": 4, "seed": 0}
    losses = {"loss": 2.2, "low": 2.1, "high": 2.3, "bytes": 240, "documents": 12}
    write_rows(results / "measurements/losses.parquet", pd.DataFrame([row | losses]))
    assert cli.main(words) == 0
    assert '"name": "soma-n5-s0"' in (tmp_path / "demo.html").read_text()
