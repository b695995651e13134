"""The workflow runs from any folder, and writes its results where it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import short_campaign, zygote
from tests.project import ROOT, Project, planned_jobs, whole


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


def repository(project: Project) -> Path:
    """Make the checkout a repository with one commit, tagged, and take its files away; return its folder."""
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y.z"]
    names = ["Snakefile", "config", "docs", "workflow"]
    for words in (["init", "--quiet"], ["add", *names], ["commit", "--quiet", "-m", "x"], ["tag", "v1"]):
        subprocess.run([*git, *words], cwd=project.folder, check=True)
    for name in names:
        (project.folder / name).rename(project.folder / f"away-{name}")
    return project.folder


def test_the_workflow_runs_from_a_repository_that_snakemake_reads(project: Project, tmp_path_factory) -> None:
    """`git+file:` is read as `gh:` and `github(...)` are: file by file, without a checkout."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    toy, planned = project.folder / "toy.yaml", project.planned()
    toy.write_text((project.folder / "config/toy.yaml").read_text())
    overlay = project.folder / "short.yaml"
    overlay.write_text((project.folder / short_campaign.checkout(project, "short", {}, {})).read_text())
    for name in ("text", "elsewhere"):
        os.rename(project.folder / name, elsewhere / name)
    source = f"git+file://{repository(project)}/workflow/Snakefile@v1"
    words = ["--snakefile", source, "--cores", "1"]
    assert planned_jobs(snakemake_in(project, elsewhere, "-n", *words, "--configfile", str(toy))) == planned != {}
    words += ["--configfile", str(overlay), "--"]
    table = "results/short/tables/table2.md"  # reads config/paper_values.yaml
    snakemake_in(project, elsewhere, "--quiet", "all", *words, "data", table)
    assert (elsewhere / "results/short/sets/test.parquet").is_file()
    assert (elsewhere / "results/short/provenance.json").is_file()
    assert planned_jobs(snakemake_in(project, elsewhere, "-n", *words, "data", table)) == {}


def test_a_module_is_read_from_a_repository(project: Project, tmp_path_factory) -> None:
    """As `snakedeploy` writes it, but for the place of the repository."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    overlay = elsewhere / "short.yaml"
    overlay.write_text((project.folder / short_campaign.checkout(project, "short", {}, {})).read_text())
    (elsewhere / "Snakefile").write_text(
        f"""
configfile: "short.yaml"

module soma:
    snakefile: gitfile({str(repository(project))!r}, path="workflow/Snakefile", tag="v1")
    config: config

use rule * from soma
"""
    )
    plan = planned_jobs(snakemake_in(project, elsewhere, "-n", "--cores", "1"))
    assert plan.keys() >= {"download", "train_expert", "table", "page"}


def test_the_catalogue_of_workflows_finds_what_it_looks_for(project: Project) -> None:
    """A description with known keys, a configuration's README, and a small campaign in `.test`."""
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage.keys() == {"mandatory-flags", "software-stack-deployment", "report"}
    assert usage["mandatory-flags"].keys() == {"desc", "flags"}
    assert usage["software-stack-deployment"].keys() == {"conda", "apptainer", "apptainer+conda"}
    assert (ROOT / "workflow/Snakefile").is_file()
    assert (ROOT / "config/README.md").is_file()
    shutil.copytree(ROOT / ".test", project.folder / ".test", symlinks=True)
    words = ["--directory", ".test", "--configfile", ".test/config/config.yaml"]
    plan = planned_jobs(snakemake_in(project, project.folder, "-n", "--cores", "1", *words))
    flags = usage["mandatory-flags"]["flags"].split()
    assert plan == planned_jobs(snakemake_in(project, project.folder, "-n", "--cores", "1", *flags)) != {}


@pytest.fixture
def apptainer(tmp_path_factory, monkeypatch) -> Path:
    """Put a stand-in for Apptainer on the path, and return the folder of the package in its image.

    It runs a command with the Python of the image, and of the host nothing but the system's own tools.
    """
    tools, image = tmp_path_factory.mktemp("tools"), tmp_path_factory.mktemp("image")
    (image / "bin").mkdir()
    python = f'#!/bin/sh\nPYTHONPATH={image}/src exec {sys.executable} "$@"\n'
    command = f"""#!/bin/sh
if [ "$1" = --version ]; then echo apptainer version 1.3.0; exit; fi
for last; do :; done
case "$last" in *{sys.executable}*) echo "the command names the Python of the host: $last" >&2; exit 9 ;; esac
echo "$last" >> {image}/commands
exec env --ignore-environment PATH={image}/bin:/usr/bin:/bin HOME="$PWD" OMP_NUM_THREADS=1 bash -c "$last"
"""
    for path, text in ((image / "bin/python", python), (tools / "apptainer", command)):
        path.write_text(text)
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return image


def in_the_image(project: Project) -> subprocess.CompletedProcess[str]:
    """Make the sets of a short campaign by jobs in the image."""
    overlay = short_campaign.checkout(project, "short", {}, {})
    (project.folder / "soma.sif").touch()
    project.environment["PATH"] = os.environ["PATH"]
    command = ["snakemake", "data", "--sdm", "apptainer", "--cores", "1", "--configfile", overlay]
    assert planned_jobs(project.run(*command[:2], "-n", *command[2:]).stdout) == {"data": 1, **DATA}
    return project.run(*command, check=False)


DATA = {"download": 2, "encode": 4, "evaluation_set": 3}


def test_every_job_runs_in_the_image(project: Project, apptainer: Path) -> None:
    shutil.copytree(project.folder / "src", apptainer / "src")
    done = in_the_image(project)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len((apptainer / "commands").read_text().splitlines()) == sum(DATA.values())
    assert (project.folder / "results/short/sets/test.parquet").is_file()


def test_an_image_of_another_package_is_refused(project: Project, apptainer: Path) -> None:
    shutil.copytree(project.folder / "src", apptainer / "src")
    with (apptainer / "src/soma/plan.py").open("a") as file:
        file.write("# another version\n")
    done = in_the_image(project)
    assert done.returncode == 1
    assert "the image holds another version of the package than the workflow" in done.stdout + done.stderr
