"""The models of a campaign that a page shows: the best by validation, and the monolith that cost as much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

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


def test_validation_chooses_the_best_and_no_loss_chooses_the_monolith_beside_it(results: Path) -> None:
    assert shown(results) == ["soma-n4-s1", "spsa-n1-d8-s1"]
    (results / "runs/spsa-n1-d8-s1/000/run.json").unlink()
    assert shown(results) == ["soma-n4-s1", "spsa-n1-d8-s0"]
    (results / "runs/spsa-n1-d8-s0/000/run.json").unlink()
    assert shown(results) == ["soma-n4-s1"]
    (results / "measurements/losses.parquet").unlink()
    with pytest.raises(SomaError, match="no run to export with a measured validation loss"):
        shown(results)
