"""The whole toy campaign in DVC, like the reference campaign: the files and records of a clone."""

import json
import shutil

import pytest

from tests.dvc.repository import Repository, prepare
from tests.project import ROOT, planned_jobs
from tests.workflow.products import PRODUCTS

pytestmark = [pytest.mark.workflow, pytest.mark.dvc]


def test_a_clone_of_the_whole_campaign_has_nothing_to_do(toy, tmp_path):
    shutil.copytree(toy.folder, tmp_path / "origin", symlinks=True)
    origin = Repository(tmp_path / "origin")
    prepare(origin, "toy", "--configfile config/toy.yaml")
    left_out = (ROOT / ".dvcignore").read_text().replace("/results/small/", "/results/toy/")
    (origin.folder / ".dvcignore").write_text(left_out)
    origin.run("soma", "snapshot")
    origin.dvc("push")
    origin.commit("The toy campaign")

    clone = origin.clone(tmp_path / "clone")
    clone.configure(cache={"type": "hardlink"})
    clone.dvc("pull")
    clone.reverse_dates("toy")
    assert planned(clone) == {}
    assert not list((clone.folder / "results/toy/runs").glob("*/*/milestones.safetensors"))
    assert "up to date" in clone.dvc("status")
    assert clone.run("git", "status", "--porcelain").stdout == ""
    assert "all as the manifest says" in clone.run("soma", "verify", "results/toy").stdout

    shown = json.loads(clone.dvc("metrics", "show", "--json"))[""]["data"]["results/toy/metrics.json"]["data"]
    numbers = json.loads((clone.folder / "results/toy/numbers.json").read_text())
    assert len(shown) <= 25
    assert shown["loss soma-n2"] == numbers["test loss"]["soma-n2"]
    assert {"soma-n2", "spsa-n1-p8"} <= numbers["test loss"].keys() & numbers["external loss"].keys()
    assert sum(numbers["verdicts"].values()) == len(numbers["claims"]) == 18
    assert numbers["differences"]["C1a"]["SOMA minus spsa-n1-p8"].keys() >= {"mean", "low", "high"}
    clone.dvc("plots", "show")
    page = (clone.folder / "dvc_plots/index.html").read_text()
    assert "Test loss against operations at equal total size (Figure 1)" in page
    assert "SOMA N=2" in page

    table = "results/toy/tables/table4.md"
    for path in (clone.folder / table).parent.glob("table4.*"):
        path.unlink()
    clone.run("snakemake", table, "--cores", "2", "--configfile", "config/toy.yaml")
    assert (clone.folder / table).read_bytes() == (toy.folder / table).read_bytes()
    overlay = clone.folder / "config/toy.yaml"
    overlay.write_text(overlay.read_text() + "bootstrap_draws: 500\n")
    assert planned(clone) == PRODUCTS  # all products are regenerated, but nothing is trained or evaluated again


def planned(clone: Repository) -> dict[str, int]:
    """Return the jobs of a dry run by rule."""
    return planned_jobs(clone.run("snakemake", "-n", "--cores", "2", "--configfile", "config/toy.yaml").stdout)
