"""What a reader's first commands do: `soma regenerate`, and `make` with all its steps."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from soma.catalogue import Catalogue
from soma.files.hashes import sha256_file
from tests.project import ROOT, Project
from tests.workflow.conftest import Comparison

pytestmark = pytest.mark.workflow
RESULTS = Path("results/comparison")
CATALOGUE = Catalogue({"fixed_size", "rates"})


@pytest.fixture
def copy(comparison: Comparison, tmp_path: Path) -> Project:
    """Return a copy of the campaign to work in."""
    return Project.copy_of(comparison.project, tmp_path / "copy")


def hashes(folder: Path) -> dict[str, str]:
    return {str(path): sha256_file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def test_regenerate_tells_whether_everything_came_out_as_published(comparison, copy):
    """Byte for byte; then with a page that was edited, and a file of rows that was not pulled."""
    results = copy.folder / RESULTS
    before = hashes(results)
    words = ("soma.cli", "regenerate", "--configfile", comparison.config)
    [line] = copy.run(*words).stdout.splitlines()
    number = rf"{len(CATALOGUE.tables)} tables, {len(CATALOGUE.figures)} figures and \d+ other results"
    assert re.match(rf"{RESULTS}: {number} made again from rows; all came out as published \(\d+ byte for byte", line)
    assert hashes(results) == before

    (results / "README.md").write_text((results / "README.md").read_text() + "and more\n")
    (results / "evaluation/test/soma-n2.parquet").unlink()
    done = copy.run(*words, check=False)
    assert done.returncode == 1
    assert done.stdout.count("README.md: its content differs") == 1
    assert re.search(r"1 of \d+ did not come out as published \(README\.md\)", done.stderr)
    assert re.search(r"[1-9]\d* more need files that are not here", done.stderr)
    assert "Traceback" not in done.stderr


def test_a_command_that_fails_again_tells_why(comparison, copy):
    source = copy.folder / "src/soma/report/summary.py"
    source.write_text(source.read_text() + "\nraise SystemExit('broken here')\n")
    done = copy.run("soma.cli", "regenerate", "--configfile", comparison.config, check=False)
    assert done.returncode == 1
    assert "README.md, 2 file(s) regenerated: differs in exit status: broken here" in done.stdout


def tools(project: Project) -> Path:
    """Write the scripts of an installed environment; `dvc` only notes how it was called."""
    folder = project.folder / "env/bin"
    folder.mkdir(parents=True)
    run = f"exec {sys.executable}"
    scripts = {"python": run, "soma": f"{run} -m soma.cli", "snakemake": f"{run} -m snakemake", "dvc": "echo dvc"}
    for name, command in scripts.items():
        (folder / name).write_text(f'#!/bin/sh\n{command} "$@"\n')
        (folder / name).chmod(0o755)
    for path in (ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "setup.py", *ROOT.glob("requirements*")):
        shutil.copy(path, project.folder)
    return folder.parent


def test_make_shows_that_the_published_campaign_comes_out_again(comparison, copy):
    environment = tools(copy)
    (environment / ".soma-installed").touch()
    (copy.folder / RESULTS / "report.html").unlink()
    command = ["make", "VENV=env", "CAMPAIGN=comparison", f"CONFIG={comparison.config}"]
    done = subprocess.run(command, cwd=copy.folder, env=copy.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["step 1 of 4: pull weights and rows", "dvc pull"]
    assert sum("all came out as published" in line for line in lines) == 1
    assert [line for line in lines if "soma-n2-s0" in line and line.endswith(": identical")]
    assert sum(line.startswith("step ") for line in lines) == 4
    assert lines[-1].split()[:2] == ["page", str(RESULTS / "index.html")]
    assert (copy.folder / RESULTS / "report.html").is_file()


def test_set_up_tells_its_steps_and_then_has_nothing_to_do(project):
    environment = tools(project)
    (environment / "bin/python").write_text("#!/bin/sh\nexit 0\n")
    said = [
        subprocess.run(
            ["make", "VENV=env", "setup"],
            cwd=project.folder,
            env=os.environ,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert [line.partition(":")[0] for line in said[0]] == [f"setup, step {i} of 6" for i in range(1, 7)]
    assert said[1] == ["make: Nothing to be done for 'setup'."]
