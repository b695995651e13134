"""`soma adopt` keeps results after a refactoring, and refuses after a change of a number."""

from __future__ import annotations

import json

import pytest

from soma.workflow.manifest import ADOPTIONS
from tests.dvc.repository import OVERLAY, RESULTS, Repository

pytestmark = pytest.mark.dvc

KERNEL = "src/soma/forward/cpu.py"
SPSA = "src/soma/estimators/spsa.py"
RECORD = RESULTS / "runs/soma-n2-s0/000-001/run.json"


def edit(repository: Repository, path: str, *changes: tuple[str, str]) -> None:
    file = repository.folder / path
    text = file.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    file.write_text(text)


def adopt(repository: Repository, *options: str, status: int = 0) -> str:
    done = repository.run("soma", "adopt", *options, "--configfile", OVERLAY, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def records(repository: Repository) -> dict[str, str]:
    """Return the content of every file that an adoption may write."""
    paths = [repository.folder / RESULTS / name for name in ("provenance.json", "manifest.json", ADOPTIONS)]
    paths += sorted((repository.folder / RESULTS).glob("runs/*/*/run.json"))
    return {str(path): path.read_text() for path in paths if path.exists()}


def test_a_renamed_function_is_adopted_and_its_line_of_adoptions_is_shown(copy, tmp_path):
    assert "nothing to adopt" in adopt(copy)
    edit(copy, KERNEL, ("_model(", "_described("))
    edit(copy, "src/soma/data/encode.py", ("_ASCII_FOLD", "_LOWER"))
    edit(copy, "src/soma/report/table.py", ("_inline", "_in_line"))
    planned = copy.planned()
    assert {"train_seed", "train_expert_with_leg", "evaluate", "encode", "table"} <= planned.keys()
    said = adopt(copy)
    assert "could not be made" in said
    assert copy.planned() == {}
    [first] = json.loads((copy.folder / RESULTS / ADOPTIONS).read_text())
    codes = {each["code"]: each for each in first["adopted"]}
    assert {"train/spsa/cpu", "evaluate/cpu", "encode", "table/table4"} <= codes.keys()
    for each in codes.values():
        assert each["counts"] == {"identical": len(each["compared"])}
        assert each["from"] != each["to"]
    assert {c["what"].split()[0] for c in codes["train/spsa/cpu"]["compared"]} == {"updates", "last"}
    assert first["processor"]
    assert first["date"]

    edit(copy, SPSA, ("def _over_experts", "def _own_or_all"), ("_over_experts(", "_own_or_all("))
    assert {"train_seed", "train_expert_with_leg"} <= copy.planned().keys()
    adopt(copy)
    assert copy.planned() == {}
    line = json.loads((copy.folder / RECORD).read_text())["adoptions"]
    assert [each["code"] for each in line] == ["train/spsa/cpu"] * 2
    assert line[0]["to"] == line[1]["from"]
    assert all("identical" in said for said in line[1]["compared"])
    assert "all as the manifest says" in copy.run("soma", "verify", str(RESULTS)).stdout

    copy.run("soma", "snapshot")
    copy.dvc("push")
    copy.commit("Names")
    clone = copy.clone(tmp_path / "clone")
    clone.dvc("pull")
    assert clone.planned() == {}


def test_changed_numbers_are_refused_and_named(copy):
    """A changed sign differs in training, a changed interval in rows; each by itself would be refused."""
    edit(copy, SPSA, ("losses[..., 0] - losses[..., 1]", "losses[..., 1] - losses[..., 0]"))
    edit(copy, "src/soma/analysis/bootstrap.py", ("0.025", "0.05"))
    before, planned = records(copy), copy.planned()
    assert planned
    for reason in ((), ("--reason", "none is good enough")):
        said = adopt(copy, *reason, status=1)
        assert "nothing was adopted" in said
        for named in ("seed-d4-s0 000-000, updates", "losses.parquet"):
            assert any(named in line and "differs" in line for line in said.splitlines()), said
        assert records(copy) == before
    assert copy.planned() == planned


def test_what_cannot_be_compared_is_adopted_for_a_stated_reason_alone(copy):
    edit(copy, SPSA, ("def _over_experts", "def _own_or_all"), ("_over_experts(", "_own_or_all("))
    for path in (copy.folder / RESULTS).glob("runs/*/*/history.parquet"):
        path.rename(path.with_suffix(".away"))
    said = adopt(copy, status=1)
    assert "are not identical" in said
    assert "--reason" in said
    adopt(copy, "--reason", "the histories were lost")
    [adoption] = json.loads((copy.folder / RESULTS / ADOPTIONS).read_text())
    assert adoption["reason"] == "the histories were lost"
    assert json.loads((copy.folder / RECORD).read_text())["adoptions"][0]["reason"] == "the histories were lost"
    for path in (copy.folder / RESULTS).glob("runs/*/*/history.away"):
        path.rename(path.with_suffix(".parquet"))
    assert copy.planned() == {}
