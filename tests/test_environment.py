"""The lock, pyproject.toml and environment.yml agree, and can be installed with any build of torch."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, UNLOCKED = SETTINGS["project"], SETTINGS["tool"]["uv"]["pip"]["no-extra"]


def pins(name):
    """The requirements of a file; a line that goes on has the hashes."""
    lines = (ROOT / name).read_text().splitlines()
    return [Requirement(line.split(" \\")[0]) for line in lines if re.match(r"[a-z0-9]", line)]


LOCK, TORCH, OF_TORCH, DOCS, PIP = (
    pins(f"requirements{name}") for name in (".lock", "-torch.txt", "-torch.lock", "-docs.lock", "-pip.txt")
)


def declared():
    extras = [r for name, rs in PROJECT["optional-dependencies"].items() if name not in UNLOCKED for r in rs]
    return [r for r in map(Requirement, (*PROJECT["dependencies"], *extras)) if r.name != PROJECT["name"]]


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_every_dependency_is_pinned_within_its_range(requirement):
    pins = [r for r in (*LOCK, *TORCH) if canonicalize_name(r.name) == canonicalize_name(requirement.name)]
    assert pins, f"{requirement.name} is not locked: run `make lock`"
    for pin in pins:
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        assert requirement.specifier.contains(specifier.version), f"{pin} is outside {requirement}: run `make lock`"


def test_torch_stands_apart():
    (torch,) = TORCH
    assert str(torch) == "torch==2.13.0"
    assert SpecifierSet(">=2.11,<3") == next(r.specifier for r in declared() if r.name == "torch")
    assert version("torch").split("+")[0] == "2.13.0"
    cuda = [r.name for r in LOCK if re.match(r"torch$|triton|nvidia-|cuda-", r.name)]
    assert not cuda, f"the lock names what only a CUDA build of torch needs: {cuda}"


@pytest.mark.parametrize("name", [".lock", "-torch.txt", "-torch.lock", "-docs.lock", "-pip.txt", "-triton.txt"])
def test_every_package_that_set_up_installs_has_hashes(name):
    blocks = re.split(r"\n(?=[a-z0-9])", (ROOT / f"requirements{name}").read_text())
    named = [b for b in blocks if re.match(r"[a-z0-9]", b)]
    assert named
    assert [b.split()[0] for b in named if "--hash=sha256:" not in b] == []


def test_what_torch_needs_has_the_versions_of_the_lock():
    """Both are installed, the second over the first; what only a CUDA build needs is in the first alone."""
    versions = {(r.name, str(r.specifier)) for r in LOCK}
    common = {r.name for r in LOCK} & {r.name for r in OF_TORCH}
    assert {"filelock", "jinja2", "sympy"} <= common
    assert {(r.name, str(r.specifier)) for r in OF_TORCH if r.name in common} <= versions
    assert {"triton", "nvidia-cublas"} <= {r.name for r in OF_TORCH} - common
    (triton,) = (r for r in OF_TORCH if r.name == "triton")
    assert str(triton.specifier) == str(pins("requirements-triton.txt")[0].specifier)


def test_the_group_that_builds_the_documentation_is_locked_beside_the_rest():
    """It is installed over the lock, which it must not change."""
    group = list(map(Requirement, SETTINGS["dependency-groups"]["docs"]))
    pinned = {r.name: next(iter(r.specifier)).version for r in DOCS}
    assert [str(r) for r in group if not r.specifier.contains(pinned[r.name])] == [], "run `make lock`"
    versions = {r.name: str(r.specifier) for r in LOCK}
    common = [r for r in DOCS if r.name in versions]
    assert {"jinja2", "pygments"} <= {r.name for r in common}
    assert [str(r) for r in common if str(r.specifier) != versions[r.name]] == []


def test_set_up_installs_nothing_unchecked():
    lines = re.findall(r"\$\(INSTALL\) (.*)", (ROOT / "Makefile").read_text())
    unchecked = [line for line in lines if "--require-hashes" not in line]
    assert unchecked == ["$(TORCH)", "--no-deps --no-build-isolation -e ."]
    assert "TORCH ?= --require-hashes" in (ROOT / "Makefile").read_text()
    assert [r.name for r in PIP] == ["pip"]


def test_environment_yml_uses_the_lock_and_a_supported_python():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    assert pip == ["-r requirements.lock"], "conda users take every pin from the lock and from nowhere else"
    names = [d for d in environment["dependencies"] if isinstance(d, str)]
    assert {re.split("[=<>]", n)[0] for n in names} == {"python", "pip", "make", "cxx-compiler"}
    python = next(n for n in names if n.startswith("python=")).split("=")[1]
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)


def test_installed_versions_are_the_locked_ones():
    for pin in LOCK:
        if pin.marker is None or pin.marker.evaluate():
            (specifier,) = pin.specifier
            assert version(pin.name) == specifier.version, f"{pin.name}: run `make setup`"


def test_no_registry_or_machine_path_is_named():
    text = "".join(path.read_text() for path in (*ROOT.glob("requirements*"), ROOT / "Makefile"))
    assert not re.search(r"https?://|--index-url|--find-links", text)
