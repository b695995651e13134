"""The end of a run reads only files whose hash no job has recorded, and each of them once."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from snakemake.persistence import MetadataRecord
from snakemake.persistence.file import FilePersistence

from soma.workflow import contents, provenance
from soma.workflow.contents import Contents
from soma.workflow.manifest import recorded_files, write_manifest

RESULTS = Path("results/one")
RECORDED = ("corpus/train/bytes.bin", "routing/router-n2/router.npz", "runs/a-s0/000-000/weights.safetensors")
OTHERS = ("corpus/train/manifest.json", "routing/router-n2/router.json", "runs/a-s0/000-000/run.json", "tables/one.md")
SHIPPED = sorted({*RECORDED, *OTHERS})


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write(name: str, text: str, age: float = 0) -> None:
    """Write a file of the campaign, `age` seconds ago."""
    path = RESULTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    then = 1.7e9 - age
    os.utime(path, (then, then))


@pytest.fixture
def hashed(tmp_path, monkeypatch) -> list[str]:
    """A finished campaign whose jobs recorded hashes; returns the files that are hashed from now on."""
    monkeypatch.chdir(tmp_path)
    for name in RECORDED:
        write(name, name, age=2)
    known = {name: {"bytes": len(name), "sha256": sha256(name)} for name in RECORDED}
    for index, name in zip(OTHERS[:2], RECORDED[:2], strict=True):
        write(index, json.dumps({"files": {Path(name).name: known[name]}}))
    write(OTHERS[2], json.dumps({"weights_sha256": sha256(RECORDED[2]), "milestones_sha256": "0" * 64}))
    write(OTHERS[3], "a table")
    write("shards/iid-n1/text.bin", "a copy of the corpus")
    write("corpus/source-train/documents.parquet", "a download")
    store = FilePersistence(path=tmp_path / ".snakemake")
    for name in SHIPPED:
        target = str(RESULTS / name)
        store._write_record(target, MetadataRecord(rule="rule", params=[name], record_format_version=6, job_hash=7))
    read: list[str] = []
    monkeypatch.setattr(contents, "sha256_file", lambda path: read.append(str(path)) or sha256(path.read_text()))
    return read


def finish() -> dict[str, str]:
    """End a run as the workflow does; returns the hashes of its manifest."""
    found = Contents(RESULTS)
    write_manifest(RESULTS, found)
    provenance.pack(RESULTS, found)
    return {name: known["sha256"] for name, known in recorded_files(RESULTS).items()}


def test_what_jobs_recorded_is_not_read_and_the_rest_once(hashed):
    manifest = finish()
    assert sorted(hashed) == sorted(str(RESULTS / name) for name in OTHERS)
    assert manifest == {name: sha256((RESULTS / name).read_text()) for name in SHIPPED}
    packed = provenance._read(provenance.packed(RESULTS))
    assert {t: e["content"] for t, e in packed.items()} == {str(RESULTS / name): manifest[name] for name in SHIPPED}

    hashed.clear()
    assert finish() == manifest
    assert hashed == []  # the manifest knows them all


@pytest.mark.parametrize("change", ["later", "longer"])
def test_a_file_that_was_written_since_is_read(hashed, change):
    for name in (*RECORDED, *OTHERS[3:]):
        if change == "later":
            write(name, f"{(RESULTS / name).read_text()[:-1]}!", age=-5)
        elif name != RECORDED[2]:  # the record of a run has no sizes
            write(name, f"{name} and more", age=2)
    manifest = finish()
    assert manifest == {name: sha256((RESULTS / name).read_text()) for name in SHIPPED}
    assert len(hashed) == len(set(hashed))


@pytest.mark.parametrize("text", ["{", "[]", '{"files": 1}', '{"files": {"bytes.bin": "x"}}'])
def test_a_damaged_index_says_nothing(hashed, text):
    write(OTHERS[0], text)
    assert finish()[RECORDED[0]] == sha256(RECORDED[0])
    assert str(RESULTS / RECORDED[0]) in hashed
