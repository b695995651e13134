"""A clone has nothing to do after a pull, reruns exactly what an edit affects, and records no more than it pulled."""

import json

import pytest

from soma.workflow.provenance import packed
from tests.dvc.repository import OVERLAY, RESULTS, TABLE

pytestmark = pytest.mark.dvc

SUMMARY = {"summarise": 2, "table": 1}
EDITS = [
    ({"arms": {"soma-n2": {"lr": 1e-3}}}, {"train_expert_with_leg": 1, "evaluate": 3, **SUMMARY}),
    ({"data": {"external": {"windows": 6}}}, {"evaluation_set": 1, "evaluate": 1, "evaluate_ngrams": 1, **SUMMARY}),
]


def recorded(repository) -> set[str]:
    """Files with a record."""
    jobs = json.loads(packed(repository.folder / RESULTS).read_text())
    return {target for job in jobs for target in job["files"]}


def test_after_a_pull_nothing_is_left_to_do_and_an_edit_reruns_what_it_touches(clone):
    repository = clone(links="hardlink")
    repository.reverse_dates()
    assert repository.planned() == {}
    assert "up to date" in repository.dvc("status")
    assert repository.run("git", "status", "--porcelain").stdout == ""
    overlay = repository.folder / OVERLAY
    before = overlay.read_text()
    for change, expected in EDITS:
        repository.change(change)
        assert repository.planned() == expected, change
        overlay.write_text(before)
    code = repository.folder / "src/soma/report/table.py"
    code.write_text(code.read_text().replace("Point at a cell for its run.", "Point at a cell."))
    assert repository.planned() == {"table": 1}


def test_records_that_came_before_their_files_hold_too(origin, tmp_path):
    repository = origin.clone(tmp_path / "clone")
    assert repository.planned() == {}  # the table came with git
    (repository.folder / TABLE).unlink()
    planned = repository.planned()
    assert (planned["download"], planned["train_expert_with_leg"]) == (2, 1)
    repository.run("git", "checkout", "--quiet", str(TABLE))
    repository.configure(cache={"type": "symlink"})
    repository.dvc("pull")
    assert (repository.folder / RESULTS / "measurements/losses.parquet").is_symlink()
    repository.reverse_dates()
    assert repository.planned() == {}
    assert "all as the manifest says" in repository.run("soma", "verify", str(RESULTS)).stdout


def test_tables_come_with_git_and_a_new_label_needs_the_evaluation_too(clone):
    repository = clone("products")
    results = repository.folder / RESULTS
    assert {p.name for p in results.iterdir() if p.is_dir()} == {"benchmarks", "figures", "tables"}
    assert (repository.folder / TABLE).exists()
    assert repository.planned() == {}
    repository.dvc("pull", "evaluation")
    repository.change({"arms": {"soma-n2": {"label": "relabelled"}}})
    before = recorded(repository)
    assert "3 jobs done in " in repository.snakemake()
    assert "relabelled" in (repository.folder / TABLE).read_text()
    assert recorded(repository) == before  # records of absent files included

    refused = repository.run("soma", "snapshot", check=False)
    assert refused.returncode == 1
    assert "results/tiny/corpus is missing" in refused.stderr
    assert repository.run("git", "status", "--porcelain", "dvc.lock").stdout == ""


def test_what_evaluation_reads_can_be_pulled_alone_and_damaged_records_are_a_sentence(clone):
    repository = clone(*(str(RESULTS / name) for name in ("corpus", "sets", "routing", "shards", "runs")))
    (repository.folder / TABLE).unlink()
    assert repository.planned() == {"evaluate": 3, "evaluate_ngrams": 1, "measure": 1, **SUMMARY}
    path = packed(repository.folder / RESULTS)
    path.write_text(path.read_text()[:-100] + "<<<<<<< HEAD\n")
    said = repository.run("snakemake", "-n", "--configfile", OVERLAY, check=False)
    assert said.returncode != 0
    assert f"git checkout HEAD {RESULTS}/provenance.json" in said.stdout + said.stderr
    assert "Traceback" not in said.stdout + said.stderr
