"""Campaigns that the tests of this folder share: toy, and one that compares two arms and has nothing else."""

import subprocess
from dataclasses import dataclass

import pytest

from tests import short_campaign
from tests.project import Project

_AUTHOR = ("-c", "user.name=test", "-c", "user.email=test@localhost")


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Project:
    """Return the toy campaign, run once from scratch; tests must not change it."""
    project = Project(tmp_path_factory.mktemp("toy"))
    for words in (("init", "--quiet"), ("add", "--all"), (*_AUTHOR, "commit", "--quiet", "--message", "toy")):
        subprocess.run(["git", *words], cwd=project.folder, check=True)  # run records contain the commit
    project.snakemake()
    return project


@dataclass(frozen=True)
class Alone:
    """The campaign `alone`, run once."""

    project: Project
    config: str
    planned: dict[str, int]
    """Its jobs by rule."""
    said: list[str]
    """Lines that its run printed."""


@pytest.fixture(scope="session")
def alone(tmp_path_factory) -> Alone:
    """Return the comparison of two arms alone, run from scratch to its page; tests must not change it."""
    project = Project(tmp_path_factory.mktemp("alone"))
    arms = {"soma-n2": {"seeds": [0]}, "spsa-n1-p8": {"seeds": [0]}}
    config = short_campaign.checkout(project, "alone", {}, arms)
    project.overlay({"products": short_campaign.COMPARISON}, base=config)
    planned = project.planned(config)
    return Alone(project, config, planned, project.snakemake(config=config).stderr.splitlines())
