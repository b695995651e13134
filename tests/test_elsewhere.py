"""The workflow runs from any folder, and writes its results where it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import short_campaign
from tests.project import Project, planned_jobs


def snakemake(project: Project, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Snakemake in a folder with the project's Snakefile, named by its path."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(project.folder / "Snakefile"), "--cores", "1"]
    done = subprocess.run(
        [*command, *words], cwd=folder, env=project.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done


def test_the_plan_is_the_same_from_another_folder(project: Project, tmp_path_factory) -> None:
    here, elsewhere = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("elsewhere")
    toy = ["--configfile", str(project.folder / "config/toy.yaml")]
    done = snakemake(project, here, "--directory", str(elsewhere), "-n", *toy)
    assert planned_jobs(done.stdout + done.stderr) == project.planned() != {}
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
    assert planned_jobs(again.stdout + again.stderr) == {}
