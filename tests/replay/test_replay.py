"""`soma replay` on a tiny campaign: repeated pieces are identical, and every change is detected and named."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from soma.cli import main
from soma.commands.replay import Comparison, compare_runs, recorded
from soma.errors import SomaError
from soma.estimators import bptt, spsa
from soma.files.artefact import seal
from soma.files.atomic import read_json, write_json
from soma.files.hashes import sha256_file
from soma.forward import cpu
from soma.training.checkpoint import load_tensors, save_tensors
from soma.training.job import Trainer
from tests.replay.tiny_campaign import PARTS, SPECS, train

pytestmark = pytest.mark.skipif(not cpu.available(), reason="the compiled CPU engine is not built")

SOMA = "runs/soma-n2-s0/000-001"
FIRST, LAST = "updates 1-5", "last leg 12-20"


def by_piece(comparisons: list[Comparison]) -> dict[tuple[str, str], Comparison]:
    return {(c.run, c.what): c for c in comparisons}


def statuses(results: Path, *runs: str) -> dict[str, str]:
    """Return the status of every piece of some runs, and the field if it differs."""
    comparisons = compare_runs(results, list(runs) or None, everything=not runs)
    return {c.what: c.status if c.field is None else f"{c.status}: {c.field}" for c in comparisons}


def edit_json(path: Path, **changes) -> None:
    write_json(path, read_json(path) | changes)


def flip(path: Path, at: int = -1) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    """Return hash and modification time of every file, and the modification time of every folder."""
    return {str(p): (sha256_file(p) if p.is_file() else "", p.stat().st_mtime_ns) for p in folder.rglob("*")}


def scaled(monkeypatch, factor: float) -> None:
    """Edit the estimator so that every gradient is multiplied by a number."""
    real = spsa.estimate

    def estimate(*arguments):
        estimate = real(*arguments)
        return replace(estimate, gradient=factor * estimate.gradient)

    monkeypatch.setattr(spsa, "estimate", estimate)


def test_everything_repeats_and_nothing_is_written(finished):
    before = tree(finished)
    comparisons = compare_runs(finished, everything=True)
    assert tree(finished) == before
    assert {c.status for c in comparisons} == {"identical"}
    pieces = by_piece(comparisons)
    assert {run for run, what in pieces if what == FIRST} == {spec.id for spec in SPECS}
    assert {run for run, what in pieces if what == LAST} == {"soma-n2-s0", "eggroll-n1-s0"}
    scored = {(run, what) for run, what in pieces if "documents" in what}
    expected = {
        (run, f"{role}, {2 if run[:3] != 'egg' else 'all'} documents")
        for run in PARTS
        for role in ("validation", "test")
    }
    assert scored == {pair for pair in expected if pair[0] != "seed-d8-s0"}


def test_by_default_one_run_of_every_evaluation_is_scored(finished):
    comparisons = by_piece(compare_runs(finished))
    assert {what for run, what in comparisons if run == "soma-n2-s0"} == {
        FIRST,
        LAST,
        "validation, 2 documents",
        "test, 2 documents",
    }
    assert {run for run, what in comparisons if "documents" in what} == {"soma-n2-s0"}


def test_first_legs_that_took_long_are_left_out_by_default(results):
    cost = read_json(results / SOMA / "cost.json")
    cost["ledger"]["seconds"]["update"] = 1000.0
    write_json(results / SOMA / "cost.json", cost)
    comparisons = by_piece(compare_runs(results))
    assert ("soma-n2-s0", FIRST) not in comparisons
    assert ("soma-n2-s0", LAST) in comparisons
    assert ("soma-n2-s0", FIRST) in by_piece(compare_runs(results, ["soma-n2-s0"]))


def test_a_flipped_bit_in_a_weight(results):
    flip(results / SOMA / "weights.safetensors")
    assert set(statuses(results, "soma-n2-s0").values()) == {"differs: weights_sha256"}


def test_an_edited_weight_that_was_signed_again(results):
    """The hashes of content, file and record agree, so only the replay's own result can reveal the change."""
    path = results / SOMA / "weights.safetensors"
    tensors, facts = load_tensors(path)
    tensors["001.00000020.last.body"].view(torch.int32)[3] ^= 1
    save_tensors(path, tensors, facts)
    edit_json(results / SOMA / "run.json", weights_sha256=sha256_file(path))
    comparisons = by_piece(compare_runs(results, ["soma-n2-s0"]))
    assert comparisons["soma-n2-s0", FIRST].status == "identical"  # the first updates end before that
    last = comparisons["soma-n2-s0", LAST]
    assert (last.status, last.field, last.expert, last.update) == ("differs", "001.00000020.last.body", 1, 20)
    assert last.digits >= 5


def test_weights_of_another_identity(results):
    """Settings edited in the record differ from the identity that the weights carry."""
    record = read_json(results / SOMA / "run.json")
    record["run"]["settings"]["lr"] *= 2
    write_json(results / SOMA / "run.json", record)
    assert statuses(results, "soma-n2-s0")[FIRST] == "differs: identity"


def test_an_edited_start(results):
    """Every run that starts from the file reports it."""
    path = results / "runs/seed-d8-s0/000-000/weights.safetensors"
    tensors, facts = load_tensors(path)
    tensors["000.00000020.last.body"][0] += 1
    save_tensors(path, tensors, facts)
    for run in ("soma-n2-s0", "bptt-n1-s0"):
        assert statuses(results, run)[FIRST] == "differs: start_sha256"


@pytest.mark.parametrize("sealed", [False, True])
def test_a_changed_shard(results, sealed):
    shards = results / "shards/clusters-n2"
    ids = np.load(shards / "train.npy", allow_pickle=False)
    ids[0] += 1
    np.save(shards / "train.npy", ids)
    if sealed:
        record = {k: v for k, v in read_json(shards / "shards.json").items() if k not in ("kind", "files", "id")}
        seal(shards, "shards", record, ["train.npy", "validation.npy"])
    status_of = statuses(results, "soma-n2-s0")
    assert status_of[FIRST] == status_of[LAST] == "differs: shards_sha256"
    assert statuses(results, "bptt-n1-s0")[FIRST] == "identical"


def test_changed_text(results):
    text = results / "shards/iid-n1/text.bin"
    flip(text, 100)
    assert statuses(results, "bptt-n1-s0")[FIRST] == "differs: shards_sha256"
    text.unlink()  # as in a clone, to which it does not travel
    assert statuses(results, "bptt-n1-s0")[FIRST] == "identical"
    flip(results / "corpus/train/bytes.bin", 100)
    assert statuses(results, "bptt-n1-s0")[FIRST] == "differs: shards_sha256"


@pytest.mark.parametrize("factor", [-1.0, 1 + 1e-6])
def test_an_edited_estimator(results, monkeypatch, factor):
    scaled(monkeypatch, factor)
    comparisons = by_piece(compare_runs(results, everything=True))
    assert comparisons["soma-n2-s0", FIRST].status == "differs"
    assert comparisons["soma-n2-s0", FIRST].field == "train_loss"
    assert comparisons["soma-n2-s0", LAST].status == "differs"
    assert comparisons["bptt-n1-s0", FIRST].status == "identical"
    assert comparisons["soma-n2-s0", "test, 2 documents"].status == "identical"


def test_a_record_from_before_repeats_was_written_agrees_to_digits(results, monkeypatch):
    """A run recorded with other arithmetic cannot detect a change this small, but detects a wrong sign."""
    record = read_json(results / SOMA / "run.json")
    del record["repeats"]
    write_json(results / SOMA / "run.json", record)
    with monkeypatch.context() as edited:
        scaled(edited, 1 + 1e-6)
        comparison = by_piece(compare_runs(results, ["soma-n2-s0"]))["soma-n2-s0", FIRST]
        assert (comparison.status, comparison.digits >= 4) == ("agrees", True)
        assert "recorded before" in comparison.reason
    scaled(monkeypatch, -1.0)
    assert statuses(results, "soma-n2-s0")[FIRST] == "differs: train_loss"


@pytest.mark.parametrize(("noise", "status"), [(1e-7, "agrees"), (0.3, "differs")])
def test_backpropagation_may_round_otherwise(finished, monkeypatch, noise, status):
    real = bptt.gradient

    def gradient(*arguments):
        body, head, loss = real(*arguments)
        return body + noise * body.roll(1), head, loss

    monkeypatch.setattr(bptt, "gradient", gradient)
    comparison = by_piece(compare_runs(finished, ["bptt-n1-s0"]))["bptt-n1-s0", FIRST]
    assert comparison.status == status
    assert (comparison.digits or 0) >= 4 or status == "differs"
    assert ("torch" in comparison.reason) == (status == "agrees")


def test_another_engine_than_the_recorded_one(finished, monkeypatch):
    def create(name, device):
        if name == "cpu":
            raise SomaError("it is not built here")
        return real("torch", device)

    real = recorded.create
    monkeypatch.setattr(recorded, "create", create)
    comparisons = by_piece(compare_runs(finished, ["soma-n2-s0"]))
    assert {c.status for c in comparisons.values()} == {"agrees"}
    assert {c.reason for c in comparisons.values()} == {"recorded by the engine cpu, replayed by torch"}


@pytest.mark.parametrize(
    ("column", "row", "piece"),
    [("data_sha256", 1, FIRST), ("probes_sha256", 0, FIRST), ("expert_validation", 0, FIRST), ("lr", -1, LAST)],
)
def test_an_edited_history_row(results, column, row, piece):
    path = results / SOMA / "history.parquet"
    history = pd.read_parquet(path)
    known = history.loc[history.index[row], column]
    history.loc[history.index[row], column] = "0" * 64 if isinstance(known, str) else np.nextafter(known, 10)
    history.to_parquet(path)
    comparison = by_piece(compare_runs(results, ["soma-n2-s0"]))["soma-n2-s0", piece]
    assert (comparison.status, comparison.field, comparison.expert) == ("differs", column, row % 2)
    assert comparison.update == (5 if piece == FIRST else 20)


def test_an_edited_evaluation_row_and_a_changed_router(results):
    path = results / "evaluation/test/all.parquet"
    rows = pd.read_parquet(path)
    rows["nats"] *= 1 + 1e-9
    rows.to_parquet(path)
    assert statuses(results, "soma-n2-s0")["test, 2 documents"] == "differs: nats"
    router = results / "routing/router-n2"
    with np.load(router / "router.npz", allow_pickle=False) as arrays:
        changed = dict(arrays)
    changed["centroids"] = changed["centroids"][::-1]
    np.savez(router / "router.npz", **changed)
    assert statuses(results, "soma-n2-s0")["validation, 2 documents"] == "differs: routing"
    record = {k: v for k, v in read_json(router / "router.json").items() if k not in ("kind", "files", "id")}
    seal(router, "router", record, ["router.npz"])
    assert statuses(results, "soma-n2-s0")["validation, 2 documents"] == "differs: nats"


def test_an_evaluation_set_that_is_not_what_it_was(results):
    flip(results / "sets/test.parquet", 200)
    assert statuses(results, "soma-n2-s0")["test, 2 documents"] == "differs: sets/test.parquet"


def test_a_leg_that_lacks_something(results):
    path = results / SOMA / "leg.safetensors"
    tensors, facts = load_tensors(path)
    del tensors["memory/body.v"]
    save_tensors(path, tensors, facts)
    edit_json(results / SOMA / "run.json", leg_sha256=sha256_file(path))
    assert statuses(results, "soma-n2-s0")[LAST] == "differs: leg.safetensors"


def test_losses_that_are_no_numbers(results, capsys):
    path = results / "evaluation/test/all.parquet"
    rows = pd.read_parquet(path)
    rows["nats"] = np.nan
    rows.to_parquet(path)
    assert main(["replay", str(results), "soma-n2-s0", "--json"]) == 1
    comparison = json.loads(capsys.readouterr().out)["comparisons"][-1]
    assert (comparison["status"], comparison["field"], comparison["recorded"], comparison["digits"]) == (
        "differs",
        "nats",
        "nan",
        0,
    )


def test_a_damaged_leg(results):
    flip(results / SOMA / "leg.safetensors")
    assert statuses(results, "soma-n2-s0")[LAST] == "differs: leg_sha256"
    edit_json(results / SOMA / "run.json", leg_sha256=sha256_file(results / SOMA / "leg.safetensors"))
    assert statuses(results, "soma-n2-s0")[LAST] == "differs: leg.safetensors"


@pytest.mark.parametrize(
    ("missing", "piece"),
    [
        (f"{SOMA}/weights.safetensors", "evaluation"),
        (f"{SOMA}/leg.safetensors", LAST),
        (f"{SOMA}/history.parquet", "first updates"),
        ("corpus", FIRST),
        ("shards", LAST),
        ("runs/seed-d8-s0", FIRST),
        ("routing", "test, 2 documents"),
        ("sets", "test, 2 documents"),
    ],
)
def test_what_is_not_here_is_one_line(results, missing, piece, capsys):
    path = results / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    comparison = by_piece(compare_runs(results, ["soma-n2-s0"]))["soma-n2-s0", piece]
    assert comparison.status == "not here"
    assert f"dvc pull {results}" in comparison.reason
    assert main(["replay", str(results), "soma-n2-s0"]) == 1  # requested by name
    assert main(["replay", str(results)]) == 0
    assert "not here" in capsys.readouterr().out


def test_weights_that_are_not_here_are_arrived_at_all_the_same(results):
    (results / SOMA / "weights.safetensors").unlink()
    assert statuses(results, "soma-n2-s0")[LAST] == "identical"


def test_an_interrupted_run_publishes_its_leg(results, tmp_path, monkeypatch):
    """The run stops after the leg's update and is started again."""
    part = results / SOMA
    whole = {name: sha256_file(part / name) for name in ("leg.safetensors", "weights.safetensors", "history.parquet")}
    shutil.rmtree(part)
    spec = next(spec for spec in SPECS if spec.id == "soma-n2-s0")
    real = Trainer.train
    with monkeypatch.context() as stopped:
        stops = {"should_stop": lambda: trainers[-1].progress.update == 15}
        trainers = []

        def some(self, save, **options):
            trainers.append(self)
            real(self, save, **(options | stops))

        stopped.setattr(Trainer, "train", some)
        with pytest.raises(SomaError, match="stopped after update 15"):
            train(results, spec, tmp_path)
    train(results, spec, tmp_path)
    assert {name: sha256_file(part / name) for name in whole} == whole


def test_a_campaign_without_legs_says_so(results, capsys):
    for path in (results / "runs").glob("*/*/leg.safetensors"):
        path.unlink()
    for path in (results / "runs").glob("*/*/run.json"):
        record = read_json(path)
        record["run"].pop("leg", None)
        write_json(path, record)
    main(["replay", str(results), "eggroll-n1-s0"])
    assert f"{results} has no last legs" in capsys.readouterr().out


def test_the_command_prints_lines_or_one_document(results, capsys, caplog):
    assert main(["replay", str(results)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "bptt-n1-s0 000-000, updates 1-5: identical"
    assert out[-1].startswith(f"{results}: {len(out) - 1} identical, 0 agree, 0 differ, 0 not here")
    flip(results / SOMA / "weights.safetensors")
    assert main(["replay", str(results), "soma-n2-s0", "bptt-n1-s0", "--json"]) == 1
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["counts"] == {"differs": 4, "identical": 3}
    assert document["comparisons"][0] == {
        "run": "soma-n2-s0", "part": "000-001", "what": FIRST, "status": "differs", "field": "weights_sha256",
        "recorded": read_json(results / SOMA / "run.json")["weights_sha256"],
        "here": sha256_file(results / SOMA / "weights.safetensors"),
        "digits": None, "reason": "", "expert": None, "update": None,
    }  # fmt: skip
    assert {"processor", "date", "versions", "threads", "results", "notes"} < document.keys()
    assert caplog.messages[-1] == f"{results}: 4 of 7 comparisons differ from the record."


def test_bad_input_is_one_sentence(results, tmp_path, caplog):
    assert main(["replay", str(tmp_path / "nothing")]) == 1
    assert "has no recorded runs" in caplog.messages[-1]
    assert main(["replay", str(results), "soma-n3-s0"]) == 1
    assert "has no run soma-n3-s0" in caplog.messages[-1]
    for name in ("corpus", "sets"):
        shutil.rmtree(results / name)
    assert main(["replay", str(results)]) == 1
    assert "nothing could be compared" in caplog.messages[-1]
    (results / "evaluation/test/all.parquet").write_text("no rows")
    assert main(["replay", str(results)]) == 1
    assert "all.parquet is not a readable parquet file" in caplog.messages[-1]
    (results / SOMA / "run.json").write_text("{}")
    assert main(["replay", str(results)]) == 1
    assert "run.json is not a run record that this version can read" in caplog.messages[-1]
