"""Records in the format of this version of Snakemake, and which of them are restored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from snakemake.persistence import MetadataRecord
from snakemake.persistence.file import FilePersistence

from soma.errors import SomaError
from soma.files.hashes import sha256_file
from soma.workflow import provenance
from soma.workflow.contents import Contents

RESULTS = Path("results/one")
LONG = f"{RESULTS}/{'long-name/' * 30}file.txt"
"""A path whose record needs a folder, because its name in base64 is longer than a file system allows."""


@pytest.fixture
def snakemake(tmp_path, monkeypatch):
    """Return Snakemake's own store of records, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return FilePersistence(path=tmp_path / ".snakemake")


def make(store: FilePersistence, target: str, params: str, text: str = "text") -> None:
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    store._write_record(target, MetadataRecord(rule="rule", params=[params], record_format_version=6, job_hash=7))


def params(store: FilePersistence, target: str) -> list[str] | None:
    store._clear_cache()
    record = store._read_record(target)
    return record.params if record else None


def forget(store: FilePersistence, *targets: str) -> None:
    for target in targets:
        store._delete_record(target)
    for mark in Path(".snakemake/provenance").iterdir():
        mark.unlink()


def test_records_come_back_for_the_files_that_they_are_about(snakemake):
    same, other, gone = (f"{RESULTS}/{n}" for n in ("same.txt", "other.txt", "gone.txt"))
    targets = (same, other, gone, LONG)
    for target in targets:
        make(snakemake, target, "old")
    make(snakemake, "results/two/else.txt", "old")
    provenance.pack(RESULTS, Contents(RESULTS))
    assert set(provenance.records(RESULTS)) == set(targets)
    assert "job_hash" not in provenance.packed(RESULTS).read_text()

    forget(snakemake, *targets)
    make(snakemake, other, "new", "other text")
    Path(gone).unlink()
    provenance.unpack(RESULTS)
    assert [params(snakemake, t) for t in (same, gone, LONG)] == [["old"]] * 3
    assert params(snakemake, other) == ["new"]

    # Not all records matched the files, so it checks again; now they do.
    Path(other).write_text("text")
    provenance.unpack(RESULTS)
    assert params(snakemake, other) == ["old"]
    # Records that Snakemake has written since are newer than the unpacked ones.
    make(snakemake, same, "newest")
    provenance.unpack(RESULTS)
    assert params(snakemake, same) == ["newest"]


def test_records_of_files_that_are_not_here_stay(snakemake):
    here, gone = f"{RESULTS}/here.txt", f"{RESULTS}/gone.txt"
    make(snakemake, here, "old")
    make(snakemake, gone, "old")
    provenance.pack(RESULTS, Contents(RESULTS))
    Path(gone).unlink()
    make(snakemake, here, "new", "other text")
    provenance.pack(RESULTS, Contents(RESULTS))
    records = provenance.records(RESULTS)
    assert {target: record["params"] for target, record in records.items()} == {here: ["new"], gone: ["old"]}


def test_a_job_is_one_line_and_the_first_editions_format_is_read(snakemake):
    first, second, other = (f"{RESULTS}/{name}.txt" for name in ("a", "b", "c"))
    for target, value in ((first, "one"), (second, "one"), (other, "two")):
        make(snakemake, target, value)
    provenance.pack(RESULTS, Contents(RESULTS))
    path = provenance.packed(RESULTS)
    lines = path.read_text().splitlines()
    assert [sum(f'"{target}"' in line for target in (first, second, other)) for line in lines] == [0, 2, 1, 0]
    records = provenance.records(RESULTS)
    old = {target: {"record": records[target], "content": sha256_file(Path(target))} for target in records}
    path.write_text(json.dumps(old))
    forget(snakemake, first, second, other)
    provenance.unpack(RESULTS)
    assert params(snakemake, first) == params(snakemake, second) == ["one"]
    provenance.pack(RESULTS, Contents(RESULTS))
    assert provenance.records(RESULTS) == records


def test_without_results_nothing_is_written(snakemake):
    provenance.unpack(RESULTS)
    provenance.pack(RESULTS, Contents(RESULTS))
    assert not Path("results").exists()


def test_damage_is_a_sentence(snakemake):
    path = provenance.packed(RESULTS)
    path.parent.mkdir(parents=True)
    path.write_text("<<<<<<< HEAD")
    with pytest.raises(SomaError, match=r"git checkout HEAD results/one/provenance\.json"):
        provenance.unpack(RESULTS)
