"""What a clone knows: nothing to do after a pull, exactly what an edit touches, and no more than it pulled."""

import json

import pytest

from soma.provenance import packed
from tests.dvc.repository import OVERLAY, RESULTS

pytestmark = pytest.mark.dvc

SUMMARY = {"summarise": 1, "table": 1}
EDITS = [
    ({"compute": {"threads": 2, "save_every": 7}}, {}),
    ({"arms": {"soma-n2": {"label": "ours"}}}, SUMMARY),
    ({"arms": {"soma-n2": {"lr": 1e-3}}}, {"train_expert": 1, "evaluate": 3, **SUMMARY}),
    ({"data": {"external": {"windows": 6}}}, {"evaluation_set": 1, "evaluate": 1, **SUMMARY}),
]


@pytest.mark.parametrize("links", ["hardlink", "symlink"])
def test_after_a_pull_nothing_is_left_to_do_and_an_edit_reruns_what_it_touches(clone, links):
    repository = clone(links=links)
    repository.reverse_dates()
    assert repository.planned() == {}
    assert "up to date" in repository.dvc("status")
    assert repository.run("git", "status", "--porcelain").stdout == ""
    if links == "symlink":
        assert (repository.folder / RESULTS / "tables/table4.md").is_symlink()
        return
    overlay = repository.folder / OVERLAY
    before = overlay.read_text()
    for change, expected in EDITS:
        repository.change(change)
        assert repository.planned() == expected, change
        overlay.write_text(before)
    code = repository.folder / "src/soma/report/draw.py"
    code.write_text(code.read_text() + "\n# a remark\n")
    assert repository.planned() == {}
    code = repository.folder / "src/soma/report/table.py"
    code.write_text(code.read_text() + "\nREMARK = 1\n")
    assert repository.planned() == {"table": 1}


def test_tables_alone_can_be_pulled_and_a_new_label_needs_the_evaluation_too(clone):
    repository = clone("products")
    assert [p.name for p in (repository.folder / RESULTS).iterdir() if p.is_dir()] == ["benchmarks", "tables"]
    assert repository.planned() == {}
    repository.change({"arms": {"soma-n2": {"label": "ours"}}})
    assert repository.planned()["train_expert"] == 1  # without losses there is no table, without weights no losses
    repository.dvc("pull", "evaluation")
    assert repository.planned() == SUMMARY
    records = json.loads(packed(repository.folder / RESULTS).read_text())
    repository.snakemake()
    assert "ours" in (repository.folder / RESULTS / "tables/table4.md").read_text()
    assert json.loads(packed(repository.folder / RESULTS).read_text()).keys() == records.keys()  # also what is not here


def test_what_evaluation_reads_can_be_pulled_alone(clone):
    repository = clone(*(str(RESULTS / name) for name in ("sets", "routing", "runs")))
    (repository.folder / RESULTS / "evaluation").mkdir()
    assert repository.planned() == {"evaluate": 3, **SUMMARY}


def test_records_that_came_before_their_files_hold_too(origin, tmp_path):
    repository = origin.clone(tmp_path / "clone")
    everything = repository.planned()
    assert everything["train_expert"] == 1
    assert everything["download"] == 2
    repository.dvc("pull")
    repository.reverse_dates()
    assert repository.planned() == {}


def test_damaged_records_are_a_sentence(clone):
    repository = clone("products")
    path = packed(repository.folder / RESULTS)
    path.write_text(path.read_text()[:-100] + "<<<<<<< HEAD\n")
    said = repository.run("snakemake", "-n", "--configfile", OVERLAY, check=False)
    assert said.returncode != 0
    assert f"git checkout HEAD {RESULTS}/provenance.json" in said.stdout + said.stderr
    assert "Traceback" not in said.stdout + said.stderr
