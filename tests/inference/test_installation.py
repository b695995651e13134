"""The wheel with its declared dependencies alone loads a model, scores and samples; the rest comes with extras."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.project import ROOT
from tiny_model import Tiny

from soma.errors import EXTRAS
from soma.inference import Ensemble

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
SCRIPT = """
import json, sys
import soma
from soma.inference import Ensemble

model = Ensemble.load(sys.argv[1])
text = open(sys.argv[2], "rb").read()
score = model.score(text)
print(json.dumps([soma.__version__, score.nats, score.low, b"".join(model.sample(text[:9], 60, seed=3)).hex()]))
"""


def names_of(requirements: list[str]) -> Iterator[str]:
    """Return the packages that requirements without an extra name on this machine."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def needed(requirements: list[str]) -> set[str]:
    """Return the installed packages among requirements and all that these require in turn."""
    out: set[str] = set()
    waiting = list(names_of(requirements))
    while waiting:
        name = waiting.pop()
        try:
            more = distribution(name).requires or []
        except PackageNotFoundError:  # of a build of torch that is not the one here
            continue
        if name not in out:
            out.add(name)
            waiting += names_of(more)
    return out


def link(package: str, folder: Path) -> None:
    """Make an installed package importable from a folder."""
    for file in distribution(package).files or []:
        first = file.parts[0]
        target = Path(str(distribution(package).locate_file(first))).resolve()
        if first not in ("..", "__pycache__") and not (folder / first).exists():
            (folder / first).symlink_to(target)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from what a source distribution holds; libraries that are built already are taken over."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src/soma", source / "src/soma", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    made = source / f"build/lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for library in (ROOT / "src").rglob("*.so"):
        place = made / library.relative_to(ROOT / "src")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    words = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(source / "dist"), str(source)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *words], check=True)
    [file] = (source / "dist").glob("*.whl")
    return file


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel in a folder, beside links to its dependencies and to nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    words = ["--no-deps", "--quiet", "--target", str(folder), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True)
    for package in needed(PROJECT["dependencies"]):
        link(package, folder)
    return folder


def clean(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the standard library and one folder of packages; `-S` hides the environment's own."""
    environment = {"PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-S", *words]
    return subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=False)


@pytest.fixture
def text(tiny: Tiny, tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(b"\n".join(tiny.texts[:5]))
    return path


def test_a_model_is_used_with_the_wheel_and_its_dependencies_alone(tiny: Tiny, place: Path, text: Path) -> None:
    done = clean(place, "-c", SCRIPT, str(tiny.folder), str(text))
    assert done.returncode == 0, done.stderr
    model, data = Ensemble.load(tiny.folder), text.read_bytes()
    score = model.score(data)
    drawn = b"".join(model.sample(data[:9], 60, seed=3)).hex()
    assert json.loads(done.stdout) == [PROJECT["version"], score.nats, score.low, drawn]
    for command in (["score", "--json"], ["route"]):
        done = clean(place, "-m", "soma", *command, "--model", str(tiny.folder), "--threads", "1", str(text))
        assert done.returncode == 0, done.stderr
        assert f"{score.nats!r}" in done.stdout or command == ["route"]
    assert clean(place, "-m", "soma", "--version").stdout == f"soma {PROJECT['version']}\n"


def test_the_wheel_passes_the_test_of_those_that_are_built_for_other_machines(place: Path) -> None:
    """cibuildwheel runs this command on each wheel: it finds the compiled kernels."""
    words = shlex.split(SETTINGS["tool"]["cibuildwheel"]["test-command"])
    assert words[0] == "python"
    done = clean(place, *words[1:])
    assert done.returncode == 0, done.stderr


def test_what_an_extra_brings_is_asked_for_in_one_sentence(place: Path) -> None:
    """The packages are hidden indeed, and every command that needs one says which extra brings it."""
    for words, extra in (
        (["plan"], "workflow"),
        (["verify", "x"], "workflow"),
        (["export", "--campaign", "x", "--run", "y", "--output", "z"], "workflow"),
        (["--print-completion", "bash"], "workflow"),
        (["score", "--model", "owner/name", "text.txt"], "hub"),
    ):
        done = clean(place, "-m", "soma", *words)
        [sentence] = done.stderr.splitlines()
        assert done.returncode == 1
        assert f"pip install 'soma-repro[{extra}]'" in sentence


def imported() -> set[str]:
    """Return the packages that the source imports, wherever in a module."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src/soma").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"soma", "__future__"}


def test_every_import_is_a_dependency_or_of_the_extra_that_errors_name() -> None:
    packages = packages_distributions()
    groups = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    brings = {group: {canonicalize_name(Requirement(r).name) for r in rs} for group, rs in groups.items()}
    own = {"triton", "pydantic_core"}  # come with torch and pydantic
    for name in imported() - own:
        # The extra `harness` need not be installed.
        [package] = {canonicalize_name(p) for p in packages.get(name, [name])}
        assert package in brings[EXTRAS.get(name, "")], f"{name} is not in the extra that soma.errors.EXTRAS names"
    assert set(EXTRAS) <= imported() | {"dvc"}  # DVC is called as a command


def test_extras_are_named_where_one_needs_another() -> None:
    extras = PROJECT["optional-dependencies"]
    own = [Requirement(r) for rs in extras.values() for r in rs if r.startswith(PROJECT["name"])]
    assert [sorted(r.extras) for r in own] == [["hub"]]
