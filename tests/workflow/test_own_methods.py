"""The methods of docs/extending.md as arms of a campaign, from text to its figure, its table and its page."""

import csv
import math
import os
import re

import pytest
import yaml

from tests.examples import blocks, own_methods
from tests.project import Project
from tests.short_campaign import BUDGET

pytestmark = pytest.mark.workflow

OWN = {"signs": "SignSPSALearner N=1", "convolution": "ConvolutionLearner N=1"}
"""An estimator of one's own on the package's expert, and a module that is neither LSTM nor GRU, with their labels."""


def rows(path):
    with path.open() as f:
        return list(csv.DictReader(f))


@pytest.fixture(scope="module")
def campaign(comparison, tmp_path_factory):
    """Add both to the comparison and run it; return its checkout and its overlay."""
    project = Project.copy_of(comparison.project, tmp_path_factory.mktemp("own") / "copy")
    own_methods(project.folder)
    project.environment["PYTHONPATH"] += f"{os.pathsep}{project.folder}"
    [convolution] = [text for text in blocks("extending.md", "yaml") if "convolution" in text]
    given = {"seeds": [0], "operations": BUDGET}
    arms = {
        "signs": {"recipe": "wide-local", "width": 16, "method": "sign_spsa:SignSPSALearner", **given},
        "convolution": yaml.safe_load(convolution)["arms"]["convolution"] | given,
    }
    config = project.overlay({"arms": arms, "products": {"fixed_size": {"also": list(OWN)}}}, base=comparison.config)
    assert project.planned(config)["train_expert_with_leg"] == len(OWN)
    project.snakemake(config=config)
    return project, config


def test_they_stand_in_figure_1_and_table_4_for_the_operations_of_the_others(campaign):
    project, _ = campaign
    results = project.folder / "results/comparison"
    drawn = {row["arm"]: row for row in rows(results / "figures/figure1.csv") if row["source"] == "measured"}
    table = rows(results / "tables/table4.csv")
    row_of = {cell["text"]: cell["row"] for cell in table if cell["column"] == "method"}
    losses = {cell["row"]: cell for cell in table if cell["column"] == "test loss"}
    page = (results / "index.html").read_text()
    for arm, label in OWN.items():
        point, cell = drawn[arm], losses[row_of[label]]
        assert (point["label"], point["run"]) == (label, f"{arm}-s0")
        assert 0.8 * BUDGET < float(point["operations"]) <= BUDGET
        assert (cell["status"], cell["run"]) == ("measured", f"{arm}-s0")
        assert float(cell["value"]) == pytest.approx(float(point["loss"]), abs=1e-4)
        assert float(cell["high"]) < math.log(256)  # it has learnt something
        assert label in page
    # Every arm but SOMA has its difference from it, on the same documents.
    assert [arm for arm, row in drawn.items() if row["difference"]] == ["spsa-n1-p8", *OWN]


def test_an_edit_of_its_file_trains_a_method_again_and_no_other(campaign):
    project, config = campaign
    assert project.planned(config) == {}
    path = project.folder / "my_methods.py"
    path.write_text(path.read_text().replace("torch.relu", "torch.tanh"))
    out = project.snakemake("-n", "--quiet", "host", config=config)
    assert re.findall(r"Training ([a-z0-9-]+), expert", out.stdout + out.stderr) == ["convolution-s0"]
