"""A model exported from the toy campaign gives the scores of the evaluation."""

import json

import pandas as pd
import pytest

from soma.data.sets import open_test
from soma.inference import Ensemble
from tests.project import Project

pytestmark = pytest.mark.workflow


@pytest.mark.parametrize("run", ["soma-n4-s0", "soma-n2-s0", "spsa-n1-p8-s1"])  # a shared head, local heads, a monolith
def test_an_exported_run_has_the_losses_of_the_evaluation(toy: Project, tmp_path, run):
    folder = tmp_path / run
    results = toy.folder / "results/toy"
    toy.run("soma.cli", "export", "--campaign", str(results), "--run", run, "--output", str(folder))
    data = open_test(results / "sets/test.parquet")
    rows = pd.read_parquet(results / f"evaluation/test/{run.rsplit('-s', 1)[0]}.parquet")
    own = rows[(rows["run"] == run) & (rows["iterate"] == "last") & (rows["update"] == rows["update"].max())]
    for engine, tolerance in (("auto", 2e-6), ("evaluator", 1e-8)):
        model = Ensemble.load(folder, engine=engine)
        evaluated = own[own["k"] == model.k]
        expected = evaluated["nats"].sum() / evaluated["bytes"].sum()
        assert model.losses(data.windows)[:, :].mean() == pytest.approx(expected, abs=tolerance)
    card = (folder / "README.md").read_text()
    assert f"{expected:.4f}" in card
    assert "supports no conclusion" in card
    assert json.loads((folder / "ensemble.json").read_text())["run"] == run
