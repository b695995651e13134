"""The workflow runs from any folder, and writes its results where it runs."""

from __future__ import annotations

import os
from pathlib import Path

from tests import short_campaign, zygote
from tests.project import Project, planned_jobs, whole


def snakemake_in(project: Project, folder: Path, *words: str) -> str:
    """Run Snakemake in a folder with the code of the project, and return what it said."""
    done = whole(zygote.run(["snakemake", *words], folder, project.environment), check=True)
    return done.stdout + done.stderr


def snakemake(project: Project, folder: Path, *words: str) -> str:
    """The same with the project's Snakefile, named by its path."""
    return snakemake_in(project, folder, "--snakefile", str(project.folder / "Snakefile"), "--cores", "1", *words)


def test_the_plan_is_the_same_from_another_folder(project: Project, tmp_path_factory) -> None:
    here, elsewhere = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("elsewhere")
    toy = ["--configfile", str(project.folder / "config/toy.yaml")]
    done = snakemake(project, here, "--directory", str(elsewhere), "-n", *toy)
    assert planned_jobs(done) == project.planned() != {}
    assert list(here.iterdir()) == []


def test_results_are_written_in_the_folder_that_is_named(project: Project, tmp_path_factory) -> None:
    here, elsewhere = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("elsewhere")
    overlay = project.folder / short_campaign.checkout(project, "short", {}, {})
    for name in ("text", "elsewhere"):
        os.rename(project.folder / name, elsewhere / name)
    before = sorted(project.folder.rglob("*"))
    words = ["--quiet", "all", "--directory", str(elsewhere)]
    snakemake(project, here, *words, "data", "--configfile", str(overlay))
    assert (elsewhere / "results/short/sets/test.parquet").is_file()
    assert (elsewhere / "results/short/provenance.json").is_file()
    assert [p for p in sorted(project.folder.rglob("*")) if p not in before and "__pycache__" not in p.parts] == []
    again = snakemake(project, here, "--directory", str(elsewhere), "-n", "data", "--configfile", str(overlay))
    assert planned_jobs(again) == {}


def test_another_workflow_uses_this_one_as_a_module(project: Project, tmp_path_factory) -> None:
    """Rules are used as they are, by another name, with another configuration and prefix."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    overlay = project.folder / short_campaign.checkout(project, "short", {}, {})
    for name in ("text", "elsewhere"):
        os.rename(project.folder / name, elsewhere / name)
    outer = elsewhere / "Snakefile"
    outer.write_text(
        f"""
import yaml

module soma:
    snakefile: {str(project.folder / "Snakefile")!r}
    config: yaml.safe_load(open({str(overlay)!r}))
    prefix: "under"

use rule * from soma as soma_*

rule mine:
    default_target: True
    input: rules.soma_routing.input, "under/results/short/runs/seed-d16-s0/000-000/weights.safetensors"
"""
    )
    words = ["--cores", "1", "--snakefile", str(outer)]
    before = sorted(elsewhere.rglob("*"))
    plan = snakemake_in(project, elsewhere, "-n", *words)
    assert planned_jobs(plan).keys() >= {"soma_download", "soma_shard", "soma_train_seed"}
    assert [p for p in sorted(elsewhere.rglob("*")) if p not in before and ".snakemake" not in p.parts] == []
    snakemake_in(project, elsewhere, "--quiet", "all", *words)
    assert (elsewhere / "under/results/short/runs/seed-d16-s0/000-000/weights.safetensors").is_file()
    assert list((elsewhere / "under/results/short/resume").glob("*/*/finished"))
    assert not (elsewhere / "results").exists()
    again = planned_jobs(snakemake_in(project, elsewhere, "-n", *words))
    assert again == {}, again
    # The records that DVC carries are written by a hook, which the workflow around it calls.
    assert not (elsewhere / "under/results/short/provenance.json").exists()
    outer.write_text(outer.read_text() + "\nonsuccess:\n    soma.onsuccess()\n")
    snakemake_in(project, elsewhere, "--quiet", "all", *words, "under/results/short/sets/test.parquet")
    assert (elsewhere / "under/results/short/provenance.json").is_file()
    assert not list((elsewhere / "under/results/short/resume").glob("*/*/finished"))
