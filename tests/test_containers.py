"""The container definitions and the hosted CI file are sound, and install what `make setup` installs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCKER, APPTAINER = ((ROOT / name).read_text() for name in ("Dockerfile", "apptainer.def"))


def _tool(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / words[0]), *words[1:]]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_hadolint_has_nothing_to_say() -> None:
    done = _tool("hadolint", "--failure-threshold", "style", "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda file: file.name)
def test_workflows_of_hosted_ci_follow_the_schema(file: Path) -> None:
    done = _tool("check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(file))
    assert done.returncode == 0, done.stdout
    assert "bash .ci/run" in file.read_text()


def test_both_images_hold_what_set_up_reads() -> None:
    """A file that `make setup` needs and an image lacks would be found only by who builds the image."""
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    files = re.search(r"%files\n(.*?)\n\n", APPTAINER, re.S)
    assert files is not None
    assert sent == {word for line in files[1].splitlines() for word in line.split()[:-1]}
    (needed,) = re.findall(r"^\$\(STAMP\): (.*)$", (ROOT / "Makefile").read_text(), re.M)
    for name in re.sub(r"\$\(wildcard (.*?)\)", r"\1", needed).split():
        assert any(Path(name).match(pattern) or name.startswith(f"{pattern}/") for pattern in sent), name


def test_both_images_are_made_by_set_up_on_the_same_python() -> None:
    assert "make setup VENV=/opt/venv" in DOCKER
    assert "setup VENV=/opt/venv" in APPTAINER
    pythons = [re.search(r"python:(3[\w.-]+)", text) for text in (DOCKER, APPTAINER)]
    assert pythons[0] is not None
    assert pythons[1] is not None
    assert pythons[0][1] == pythons[1][1]
    assert re.search(r"^USER (?!0|root)", DOCKER, re.M), "the image must not run as root"
