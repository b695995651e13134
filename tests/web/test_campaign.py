"""The models of a campaign: those that can be exported, and of these the best and its monolith, which a page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from soma.cli import main
from soma.commands.models import shown
from soma.config.training import Training
from soma.errors import SomaError
from soma.files.atomic import write_json
from soma.files.tables import write_rows
from soma.runs import RunSpec

EXPERT = {"width": 8, "depth": 1, "embedding": 8}
RUNS: dict[str, dict[str, Any]] = {
    "soma-n4-s0": {"experts": 4, "updates": 10, "seed": 0},
    "soma-n4-s1": {"experts": 4, "updates": 10, "seed": 1},
    "spsa-n1-d8-s0": {"experts": 1, "updates": 40, "seed": 0},
    "spsa-n1-d8-s1": {"experts": 1, "updates": 40, "seed": 1},
    "spsa-n1-short-s1": {"experts": 1, "updates": 10, "seed": 1},
    "spsa-n1-wide-s1": {"experts": 1, "updates": 10, "seed": 1, "width": 16},
    "bptt-n4-s1": {"experts": 4, "updates": 10, "seed": 1, "method": "bptt"},
    "eggroll-n1-s0": {"experts": 1, "updates": 10, "seed": 0, "method": "eggroll", "start": "random"},
}
LOSSES = {  # on validation and on test: the best on test is not the best on validation, and backpropagation is on both
    "soma-n4-s0": (2.2, 2.0),
    "soma-n4-s1": (2.1, 2.3),
    "bptt-n4-s1": (1.5, 1.5),
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, settings in RUNS.items():
        seed = settings["seed"]
        training = Training(**EXPERT | {key: value for key, value in settings.items() if key != "seed"})
        shards = "random-n4" if training.experts > 1 else "all"
        run = RunSpec(
            id=name, kind="arm", seed=seed, start=None, shards=shards, window=80, settings=training,
            milestones=(training.updates,),
        )  # fmt: skip
        folder = tmp_path / "runs" / name / "000"
        write_json(folder / "run.json", {"run": run.model_dump(mode="json")})
        (folder / "weights.safetensors").write_bytes(b"")
    rows = [
        {"set": set_, "split": "", "iterate": "last", "seed": 0, "k": 4, "update": 10, "run": run, "loss": loss}
        for run, both in LOSSES.items()
        for set_, loss in zip(("validation", "test"), both, strict=True)
    ]
    write_rows(tmp_path / "measurements/losses.parquet", pd.DataFrame(rows).astype({"seed": "Int64"}))
    return tmp_path


def test_what_can_be_exported_is_listed_with_its_loss_and_how_to_get_it(results, capsys, monkeypatch):
    monkeypatch.chdir(results.parent)
    place = Path(results.name)
    (place / "runs/soma-n4-s0/000/weights.safetensors").unlink()
    assert main(["models", str(place)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "N", "width", "parameters", "test", "loss"]
    listed = {row[0]: row[1:] for line in lines if (row := line.split())[0] in RUNS}
    assert listed.keys() == RUNS.keys() - {"eggroll-n1-s0"}
    assert listed["soma-n4-s1"][:2] + listed["soma-n4-s1"][3:] == ["4", "8", "2.300"]
    assert listed["soma-n4-s0"][3:] == ["2.000", "dvc", "pull", f"{place}/runs/soma-n4-s0"]
    assert listed["spsa-n1-wide-s1"][1::2] == ["16", "-"]
    assert [listed[run][2] for run in ("spsa-n1-d8-s0", "soma-n4-s0")] == ["3,096", "12,384"]
    assert "not listed: 0 runs whose weights are not shipped, 1 that are no ensembles of LSTM experts" in lines
    assert main(["models", str(place / "measurements")]) == 1


def test_validation_chooses_the_best_and_no_loss_chooses_the_monolith_beside_it(results: Path) -> None:
    assert shown(results) == ["soma-n4-s1", "spsa-n1-d8-s1"]
    (results / "runs/spsa-n1-d8-s1/000/run.json").unlink()
    assert shown(results) == ["soma-n4-s1", "spsa-n1-d8-s0"]
    (results / "runs/spsa-n1-d8-s0/000/run.json").unlink()
    assert shown(results) == ["soma-n4-s1"]
    (results / "measurements/losses.parquet").unlink()
    with pytest.raises(SomaError, match="no run to export with a measured validation loss"):
        shown(results)
