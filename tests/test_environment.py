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
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = [
    Requirement(line.split(" \\")[0])
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if re.match(r"[a-z0-9]", line)
]
TORCH = [
    Requirement(line) for line in (ROOT / "requirements-torch.txt").read_text().splitlines() if not line.startswith("#")
]


def declared():
    extras = [r for group in PROJECT["optional-dependencies"].values() for r in group]
    return [Requirement(r) for r in (*PROJECT["dependencies"], *extras)]


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


def test_every_locked_package_has_hashes():
    text = (ROOT / "requirements.lock").read_text()
    blocks = re.split(r"\n(?=[a-z0-9])", text)
    unhashed = [b.split()[0] for b in blocks if re.match(r"[a-z0-9]", b) and "--hash=sha256:" not in b]
    assert not unhashed


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
    text = (ROOT / "requirements.lock").read_text() + (ROOT / "Makefile").read_text()
    assert not re.search(r"https?://|--index-url|--find-links", text)
