from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import prose

from soma.config.data import Data, External, FineWebSource, HeldOut, PackageSource, TextSource
from soma.data.build_sets import build_external, build_held_out, deal, spread_offsets
from soma.data.download import download
from soma.data.encode import encode, role_source
from soma.data.sets import TestSet, ValidationSet, open_external, open_test, open_validation
from soma.data.windows import TrainWindows, expert_validation_mask
from soma.errors import SomaError
from soma.files.hashes import sha256_file
from soma.numerics.rng import Stream

W = 256


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that runs all data steps for one set: build(data, "test") -> manifest; writes test.parquet."""

    def run(data: Data, role: Any, seed: int = 0) -> dict[str, Any]:
        for each in ("train", role):
            if not (tmp_path / f"{each}.download").exists():
                download(role_source(each, data), tmp_path / f"{each}.download")
            encode(each, data, tmp_path / f"{each}.download", tmp_path / each)
        output = tmp_path / f"{role}.parquet"
        return build_held_out(role, data, seed, tmp_path / "train", tmp_path / role, output)

    return run


def text(root: Path) -> TextSource:
    return TextSource(source="text", path=str(root))


def texts(seed: int, *lengths: int) -> dict[str, str]:
    rng = np.random.default_rng(seed)
    return {f"{seed}-{i:03d}.txt": prose(rng, n) for i, n in enumerate(lengths)}


# ------------------------------------------------------------------------------------------------ parts


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_dealt_evenly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = rng.integers(0, 6, rng.integers(0, 12))
    total = int(rng.integers(1, 30))
    dealt = deal(capacity, total)
    waiting = list(capacity)
    expected = np.zeros(len(capacity), dtype=int)
    while total and any(waiting):  # one window each per round
        for i in range(len(capacity)):
            if total and waiting[i]:
                waiting[i], total = waiting[i] - 1, total - 1
                expected[i] += 1
    assert dealt.tolist() == expected.tolist()


def test_windows_lie_evenly_inside_their_document() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        quota = int(rng.integers(1, 8))
        length = quota * 50 + 1 + int(rng.integers(0, 200))
        for share in (0.0, 0.5, 1.0):
            at = spread_offsets(np.full(quota, length), np.full(quota, quota), np.arange(quota), window=50, share=share)
            assert at[0] >= 0
            assert at[-1] + 51 <= length
            assert (np.diff(at) >= 50).all()
            assert np.ptp(np.diff(at)) <= 1 if quota > 1 else True
    middle = spread_offsets(np.array([151]), np.array([1]), np.array([0]), window=50)
    assert middle.tolist() == [50]


# --------------------------------------------------------------------------------------------- held out


def test_real_text_by_position(tmp_path: Path, build: Callable[..., dict[str, Any]]) -> None:
    data = Data(
        window=W,
        prefix=64,
        validation=HeldOut(every=50, at=3),
        test=HeldOut(every=50, at=8, windows=45, per_document=20),
    )
    manifest = build(data, "test")
    opened = open_test(tmp_path / "test.parquet")
    assert isinstance(opened, TestSet)
    assert opened.windows.shape == (45, W + 1)
    assert (opened.window, opened.prefix, opened.scored) == (W, 64, 45 * (W - 64))
    assert manifest["scored"] == opened.scored
    index = pq.read_table(tmp_path / "test" / "documents.parquet").to_pydict()
    assert index["position"] == [8, 58, 108, 158, 208]
    assert np.bincount(opened.document).tolist() == [9, 9, 9, 9, 9]
    raw = (tmp_path / "test" / "bytes.bin").read_bytes()
    for window, document, name, offset in zip(
        opened.windows, opened.document, opened.document_ids, opened.offset, strict=True
    ):
        assert index["id"][document] == name
        assert 0 <= offset <= index["length"][document] - (W + 1)
        at = index["offset"][document] + offset
        assert window.tobytes() == raw[at : at + W + 1]
    assert manifest["windows"] == {"chosen": 45, "moved": 0, "shared_substring": 0, "kept": 45}
    assert manifest["documents"]["kept"] == manifest["documents"]["considered"] == 5


def test_what_is_left_out_and_why(tmp_path: Path, folder: Any, build: Callable[..., dict[str, Any]]) -> None:
    train = texts(0, 5000, 3000, 3000)
    exact, other, normal = train["0-000.txt"], train["0-001.txt"], train["0-002.txt"]
    test = {
        **texts(1, W, 40, W + 1, 900, 2000),  # two are too short, by one byte and by many
        "exact.txt": exact,
        "normal.txt": "\u00a0" + normal.upper().replace(" ", "\n ") + "\n",
        "part.txt": other[:-1],  # neither exact nor normalised; one byte less
    }
    data = Data(
        train=text(folder("train-text", train)),
        validation=HeldOut(source=text(folder("test-text", test))),
        test=HeldOut(source=text(folder("test-text", test)), per_document=4),
        window=W,
        prefix=64,
        expert_validation=0.001,
    )
    manifest = build(data, "test")
    documents = manifest["documents"]
    assert documents == {
        "considered": 8,
        "too_short": 2,
        "shared_sha256": 1,
        "shared_normalised_sha256": 1,
        "not_needed": 0,
        "shared_substring": 0,
        "kept": 4,
    }
    ids = open_test(tmp_path / "test.parquet").document_ids
    assert sorted(set(ids)) == ["1-002.txt", "1-003.txt", "1-004.txt", "part.txt"]
    assert [list(ids).count(name) for name in sorted(set(ids))] == [1, 3, 4, 4]


def test_shared_substrings_move_a_window_or_leave_it_out(
    tmp_path: Path, folder: Any, build: Callable[..., dict[str, Any]]
) -> None:
    rng = np.random.default_rng(5)
    train = prose(rng, 40 * W + 1)
    mask = expert_validation_mask(40, 0.5, Stream.named(0, "expert-validation"))
    inside, outside = (int(np.flatnonzero(mask == value)[0]) * W for value in (True, False))
    copied, allowed = train[inside + 50 : inside + 178], train[outside + 50 : outside + 178]

    def document(middle: str) -> str:
        side = (4 * W - 128) // 2
        return prose(rng, side) + middle + prose(rng, side)

    test = {
        "clean.txt": document(prose(rng, 128)),
        "moves.txt": document(copied),
        "stays.txt": document(allowed),
        "goes.txt": prose(rng, 64) + copied + prose(rng, 66),  # 258 bytes: one position more than a window
    }
    data = Data(
        train=text(folder("train-text", {"t.txt": train})),
        test=HeldOut(source=text(folder("test-text", test))),
        window=W,
        prefix=64,
        expert_validation=0.5,
    )
    manifest = build(data, "test")
    opened = open_test(tmp_path / "test.parquet")
    offsets = dict(zip(opened.document_ids.tolist(), opened.offset.tolist(), strict=True))
    middle = (4 * W - 1 - W) // 2
    assert offsets == {"clean.txt": middle, "moves.txt": 0, "stays.txt": middle}
    assert manifest["windows"] == {"chosen": 4, "moved": 1, "shared_substring": 1, "kept": 3}
    assert manifest["documents"]["shared_substring"] == 1
    windows = TrainWindows(tmp_path / "train", W).read(np.flatnonzero(mask))
    assert not any(copied.encode() in w.tobytes() for w in opened.windows)
    assert any(copied.encode() in w.tobytes() for w in windows)


def test_candidates_by_row_group(fineweb: Path, tmp_path: Path, build: Callable[..., dict[str, Any]]) -> None:
    def source(files: tuple[int, int], rows: int | None) -> FineWebSource:
        return FineWebSource(source="fineweb-edu", path=str(fineweb), files=files, row_groups=6, rows_per_group=rows)

    data = Data(
        train=source((0, 2), None),
        # Overlaps with training in file 1, like a wrong configuration.
        test=HeldOut(source=source((1, 4), 12), keep_per_group=2, windows=9),
        window=64,
        prefix=16,
    )
    manifest = build(data, "test")
    opened = open_test(tmp_path / "test.parquet")
    documents = manifest["documents"]
    trained = set(pq.read_table(tmp_path / "train" / "documents.parquet")["id"].to_pylist())
    candidates = pq.read_table(tmp_path / "test" / "documents.parquet").to_pydict()
    assert documents["considered"] == 72
    assert documents["shared_id"] == sum(i in trained for i in candidates["id"]) > 0
    assert documents["shared_sha256"] == 0  # counted once, under the first reason
    assert not trained & set(opened.document_ids.tolist())
    left = {g for g, i in zip(candidates["group"], candidates["id"], strict=True) if i not in trained}
    assert documents["over_group_limit"] == 72 - documents["shared_id"] - 2 * len(left)
    assert documents["not_needed"] == 2 * len(left) - 9 if 2 * len(left) > 9 else documents["not_needed"] == 0
    assert len(opened) == min(9, 2 * len(left))
    assert max(np.unique(opened.group, return_counts=True)[1]) <= 2
    assert sum(documents.values()) == 2 * documents["considered"]
    assert set(opened.host) <= {f"www.site{i}.example" for i in range(3)}


def test_the_choice_is_repeatable_and_follows_the_seed(
    tmp_path: Path, folder: Any, build: Callable[..., dict[str, Any]]
) -> None:
    data = Data(
        train=text(folder("train-text", texts(0, 5000))),
        validation=HeldOut(source=text(folder("val-text", texts(1, *[600] * 40))), windows=10),
        window=W,
        prefix=64,
    )
    found = []
    for seed in (0, 0, 1):
        assert build(data, "validation", seed)["documents"]["not_needed"] == 30
        hashes = [sha256_file(tmp_path / f"validation.{kind}") for kind in ("parquet", "json")]
        found.append((hashes, open_validation(tmp_path / "validation.parquet").document_ids.tolist()))
    assert found[0] == found[1]
    assert found[0][1] == sorted(found[0][1]) != found[2][1]


# --------------------------------------------------------------------------------------------- external


TRAINED = "A document of the training text, long enough for a window of it to be taken. " * 40


@pytest.fixture
def external(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(data: Data) -> dict[str, Any]:
        download(data.external.source, tmp_path / "e.download")
        encode("external", data, tmp_path / "e.download", tmp_path / "external")
        (tmp_path / "trained").mkdir(exist_ok=True)
        (tmp_path / "trained/0.txt").write_text(TRAINED)
        own = data.model_copy(update={"train": text(tmp_path / "trained")})
        download(own.train, tmp_path / "t.download")
        encode("train", own, tmp_path / "t.download", tmp_path / "train")
        return build_external(data, tmp_path / "train", tmp_path / "external", tmp_path / "external.parquet")

    return run


@pytest.mark.parametrize("stride", [None, 50, 700])
def test_every_external_window(
    tmp_path: Path, folder: Any, external: Callable[..., dict[str, Any]], stride: int | None
) -> None:
    documents = texts(3, W, W + 1, W + 50, W + 51, 449, 3000)
    data = Data(
        window=W, prefix=64, external=External(source=text(folder("e", documents)), windows=10_000, stride=stride)
    )
    manifest = external(data)
    step = stride or W - 64
    expected = [
        (name, at, document[at : at + W + 1].encode())
        for name, document in documents.items()
        for at in range(0, len(document) - W, step)
    ]
    opened = open_external(tmp_path / "external.parquet")
    found = zip(opened.document_ids.tolist(), opened.offset.tolist(), map(bytes, opened.windows), strict=True)
    assert list(found) == expected
    assert manifest["documents"] == {
        "considered": 6, "too_short": 1, "shared_sha256": 0, "shared_normalised_sha256": 0, "not_needed": 0, "kept": 5
    }  # fmt: skip
    assert manifest["windows"] == {"available": len(expected), "kept": len(expected)}


def test_external_documents_that_were_trained_on_are_left_out(
    tmp_path: Path, folder: Any, external: Callable[..., dict[str, Any]]
) -> None:
    other = texts(3, 3000)
    documents = other | {"same.txt": TRAINED, "shouted.txt": TRAINED.upper().replace(" ", "  ")}
    data = Data(window=W, prefix=64, external=External(source=text(folder("e", documents)), windows=10_000))
    counts = external(data)["documents"]
    assert (counts["shared_sha256"], counts["shared_normalised_sha256"], counts["kept"]) == (1, 1, 1)
    assert set(open_external(tmp_path / "external.parquet").document_ids) == set(other)


def test_external_windows_of_each_split_are_spread_over_it(
    tmp_path: Path, external: Callable[..., dict[str, Any]]
) -> None:
    root = tmp_path / "wikitext"
    root.mkdir()
    rng = np.random.default_rng(0)
    for split, articles in (("validation", 30), ("test", 3)):
        rows = [""]
        for i in range(articles):
            rows += [f" = Article {i} = \n", "", f" {prose(rng, 1000)} \n", ""]
        pq.write_table(pa.table({"text": rows}), root / f"{split}-00000-of-00001.parquet")
    source = {"source": "wikitext", "path": str(root)}
    data = Data.model_validate({"window": W, "prefix": 64, "external": {"source": source, "windows": 40}})
    manifest = external(data)
    opened = open_external(tmp_path / "external.parquet")
    assert (opened.split == "validation").sum() == 40
    assert (opened.split == "test").sum() == 3 * 4
    assert manifest["windows"] == {"available": 33 * 4, "kept": 52}
    per_article = np.bincount(opened.document[opened.split == "validation"], minlength=30)
    assert per_article.min() >= 1  # 40 of 120 windows over 30 articles
    assert per_article.max() <= 2
    assert (np.diff(opened.document) >= 0).all()


def test_real_external_text(tmp_path: Path, external: Callable[..., dict[str, Any]]) -> None:
    data = Data(external=External(source=PackageSource(source="ovos-wiki"), windows=100))
    manifest = external(data)
    opened = open_external(tmp_path / "external.parquet")
    assert len(opened) == 100
    assert manifest["documents"]["considered"] == 10_033
    assert len(set(opened.group)) > 6  # the file is ordered by topic
    for window, name, offset in zip(opened.windows, opened.document_ids, opened.offset, strict=True):
        if offset == 0:
            assert window.tobytes().startswith(f"{name}\n\n".encode()[:512])


def test_no_external_document_is_long_enough(folder: Any, external: Callable[..., dict[str, Any]]) -> None:
    data = Data(window=W, prefix=64, external=External(source=text(folder("e", texts(0, 100, W)))))
    with pytest.raises(SomaError, match=r"none of 2 documents .* is left \(too_short: 2; a window needs 257 bytes\)"):
        external(data)


# ------------------------------------------------------------------------------------------------ types


def test_a_set_opens_as_what_it_is_only(tmp_path: Path, folder: Any, build: Callable[..., dict[str, Any]]) -> None:
    data = Data(
        train=text(folder("train-text", texts(0, *[1000] * 12))),
        validation=HeldOut(every=4, at=0),
        test=HeldOut(every=4, at=1),
    )
    for role in ("validation", "test"):
        build(data, role)
    assert isinstance(open_validation(tmp_path / "validation.parquet"), ValidationSet)
    with pytest.raises(SomaError, match="holds the set `test` where the validation set is expected"):
        open_validation(tmp_path / "test.parquet")
    with pytest.raises(SomaError, match="holds the set `validation` where the test set is expected"):
        open_test(tmp_path / "validation.parquet")
    with pytest.raises(SomaError, match="holds the set `validation` where the external set is expected"):
        open_external(tmp_path / "validation.parquet")
    with pytest.raises(SomaError, match="is not an evaluation set of this version"):
        open_test(tmp_path / "train" / "manifest.parquet")
    with pytest.raises(SomaError, match=r"none\.json is missing; run the rule"):
        open_test(tmp_path / "none.parquet")
    assert not open_test(tmp_path / "test.parquet").windows.flags.writeable


def test_a_damaged_set_is_not_opened(tmp_path: Path, folder: Any, build: Callable[..., dict[str, Any]]) -> None:
    build(
        Data(
            train=text(folder("train-text", texts(0, *[1000] * 12))),
            test=HeldOut(every=4, at=1),
            validation=HeldOut(every=4),
        ),
        "test",
    )
    path = tmp_path / "test.parquet"
    whole = path.read_bytes()
    for broken in (whole[:700] + bytes([whole[700] ^ 1]) + whole[701:], whole[:-3], b""):
        path.write_bytes(broken)
        with pytest.raises(SomaError, match=r"test\.parquet (does not have the hash|has \d+ bytes)"):
            open_test(path)
    path.unlink()
    with pytest.raises(SomaError, match=r"test\.parquet is missing"):
        open_test(path)
