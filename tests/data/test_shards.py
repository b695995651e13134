from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from soma.data.shards import Shards, build_shards
from soma.data.windows import Rows
from soma.errors import SomaError
from soma.files.atomic import read_json
from soma.numerics.rng import Stream

N, K = 1003, 4
W = 7
CORPUS = Rows(Stream.named(0, "text").integers(N * W + 1, 256).astype(np.uint8), W, W)
MASK = Stream.named(0, "mask").uniform(N) < 0.1
LABELS = (Stream.named(0, "labels").uniform(N) ** 2 * K).astype(np.uint16)


def build(directory: Path, partition: str, seed: int = 0, experts: int = K) -> Shards:
    labels = LABELS if partition == "clusters" else None
    return build_shards(partition, experts, CORPUS, MASK, seed, directory / partition, labels)  # type: ignore[arg-type]


@pytest.mark.parametrize("partition", ["clusters", "random"])
def test_shards_are_a_partition(tmp_path: Path, partition: str) -> None:
    shards = build(tmp_path, partition)
    parts = [p(e) for p in (shards.train, shards.validation) for e in range(K)]
    assert all(p.dtype == np.uint32 and (np.diff(p.astype(int)) > 0).all() for p in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(N))
    for e in range(K):
        assert not MASK[shards.train(e)].any()
        assert MASK[shards.validation(e)].all()
        assert shards.manifest["sizes"][e] == len(shards.train(e)) + len(shards.validation(e))
    assert sum(shards.manifest["share"]) == pytest.approx(1)


def test_clusters_follow_the_labels(tmp_path: Path) -> None:
    shards = build(tmp_path, "clusters")
    for e in range(K):
        np.testing.assert_array_equal(shards.train(e), np.flatnonzero((e == LABELS) & ~MASK))
        np.testing.assert_array_equal(shards.validation(e), np.flatnonzero((e == LABELS) & MASK))


@pytest.mark.parametrize("experts", [1, 4, 7])
def test_random_shards_are_even_seeded_and_unlike_position(tmp_path: Path, experts: int) -> None:
    shards = build(tmp_path, "random", experts=experts)
    assert np.ptp(shards.manifest["sizes"]) == (0 if N % experts == 0 else 1)
    first = shards.train(0).copy()
    np.testing.assert_array_equal(build(tmp_path, "random", experts=experts).train(0), first)
    if experts > 1:
        other = build(tmp_path, "random", seed=1, experts=experts).train(0)
        shared = len(np.intersect1d(first, other)) / len(first)
        assert abs(shared - 1 / experts) < 0.15
        assert abs(first.mean() - N / 2) < 80


def test_random_shards_do_not_repeat_from_block_to_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soma.data.shards._CHUNK", 100)
    ids = build(tmp_path, "random").train(0)
    same_place = np.bincount(ids[ids < 1000] % 100, minlength=100)  # 10 windows at the same position of their blocks
    assert same_place.min() == 0  # equal keys in every block would give 2 or 3 everywhere
    assert same_place.max() > 4


def test_iid_shards_hold_everything_once(tmp_path: Path) -> None:
    shards = build(tmp_path, "iid")
    for e in range(K):
        np.testing.assert_array_equal(shards.train(e), np.flatnonzero(~MASK))
        np.testing.assert_array_equal(shards.validation(e), np.flatnonzero(MASK))
    assert shards.manifest["sizes"] == [N] * K
    assert (tmp_path / "iid" / "train.npy").stat().st_size < 4 * N + 200


def test_views_are_mapped_and_read_only(tmp_path: Path) -> None:
    view = build(tmp_path, "clusters").train(2)
    assert isinstance(view, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


@pytest.mark.parametrize("expert", [-1, K])
def test_no_such_expert(tmp_path: Path, expert: int) -> None:
    with pytest.raises(SomaError, match=f"no expert {expert}"):
        build(tmp_path, "random").train(expert)


def test_an_empty_shard_is_one_sentence(tmp_path: Path) -> None:
    labels = np.where(LABELS == 2, 1, LABELS).astype(np.uint16)
    with pytest.raises(SomaError, match=r"expert 2 of 4 \(clusters\) has no train window among its 0; use fewer"):
        build_shards("clusters", K, CORPUS, MASK, 0, tmp_path / "s", labels)
    with pytest.raises(SomaError, match=r"expert 3 .* no validation window .* larger data\.expert_validation"):
        build_shards("clusters", K, CORPUS, MASK & (LABELS != 3), 0, tmp_path / "s", LABELS)
    with pytest.raises(SomaError, match=r"expert 0 of 4 \(iid\) has no validation"):
        build_shards("iid", K, CORPUS, np.zeros(N, bool), 0, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("labels", [None, LABELS[:-1], LABELS + np.uint16(1)])
def test_labels_that_do_not_fit(tmp_path: Path, labels: np.ndarray | None) -> None:
    with pytest.raises(SomaError, match="1003 windows and 4 clusters need one label below 4 per window"):
        build_shards("clusters", K, CORPUS, MASK, 0, tmp_path / "s", labels)


def text_of(shards: Shards, expert: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows of an expert, each with its last target: those for training and those for validation."""
    rows, *places = shards.windows(expert, CORPUS)
    return tuple(rows.crops(ids, np.zeros(len(ids), int), W) for ids in places)  # type: ignore[return-value]


@pytest.mark.parametrize("partition", ["clusters", "random", "iid"])
@pytest.mark.parametrize("limit", [0, 1 << 29], ids=["mapped", "in memory"])
def test_an_expert_has_the_bytes_of_its_windows(tmp_path, monkeypatch, partition, limit):
    monkeypatch.setattr("soma.data.shards._MEMORY", limit)
    monkeypatch.setattr("soma.data.shards._BLOCK", 100 * (W + 1))
    shards = build(tmp_path, partition)
    stored = sum(len(ids) for ids in shards.ids.values())
    assert shards.text.stat().st_size == stored * (W + 1) == N * (W + 1)
    for kept in (True, False):  # it need not travel with the rest
        if not kept:
            shards.text.unlink()
        shards.verify(range(K), CORPUS)
        for e in range(K):
            for ids, rows in zip((shards.train(e), shards.validation(e)), text_of(shards, e), strict=True):
                np.testing.assert_array_equal(rows, CORPUS.crops(ids, np.zeros(len(ids), int), W))


def test_a_damaged_text_is_the_matter_of_those_who_read_it(tmp_path):
    shards = build(tmp_path, "clusters")
    place = len(shards.train(0)) * (W + 1)  # the first byte of expert 1
    data = bytearray(shards.text.read_bytes())
    data[place] ^= 1
    shards.text.write_bytes(data)
    shards.verify([0, 2, 3], CORPUS)
    with pytest.raises(SomaError, match=r"text\.bin does not hold the windows of expert 1 that .*shards\.json records"):
        shards.verify([0, 1], CORPUS)
    shards.text.write_bytes(data[:-1])
    with pytest.raises(SomaError, match=r"text\.bin is truncated"):
        shards.verify([K - 1], CORPUS)
    shards.text.unlink()
    changed = Rows(CORPUS._flat ^ np.uint8(1), W, W)
    with pytest.raises(SomaError, match="the training text does not hold the windows of expert 1"):
        shards.verify([1], changed)


def test_damage_is_found(tmp_path: Path) -> None:
    build(tmp_path, "clusters").verify(range(K), CORPUS)
    for name in ("train.npy", "validation.npy", "shards.json"):
        for damage in ("missing", "truncated"):
            folder = tmp_path / "copy"
            shutil.copytree(tmp_path / "clusters", folder)
            data = (folder / name).read_bytes()
            (folder / name).unlink()
            if damage == "truncated":
                (folder / name).write_bytes(data[:-4])
            with pytest.raises(SomaError, match=name.replace(".", r"\.")):
                Shards.open(folder)
            shutil.rmtree(folder)
    path = tmp_path / "clusters" / "train.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    opened = Shards.open(
        tmp_path / "clusters"
    )  # the size is unchanged, so only `verify`, which reads everything, detects it
    with pytest.raises(SomaError, match=r"train\.npy does not have the hash"):
        opened.verify([0], CORPUS)


def test_the_manifest_is_bound_to_its_words(tmp_path: Path) -> None:
    build(tmp_path, "random")
    path = tmp_path / "random" / "shards.json"
    assert read_json(path)["partition"] == "random"
    path.write_text(path.read_text().replace('"partition": "random"', '"partition": "iid"'))
    with pytest.raises(SomaError, match="altered"):
        Shards.open(tmp_path / "random")
