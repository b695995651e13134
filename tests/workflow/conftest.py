"""Campaigns that the tests of this folder share: the toy campaign, and a comparison of two arms."""

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
    project.snakemake(alone=True)
    return project


@dataclass(frozen=True)
class Comparison:
    """A campaign that compares two arms and has nothing else, after it has run once."""

    project: Project
    config: str
    """Its overlay."""
    planned: dict[str, int]
    """Its jobs by rule."""
    said: list[str]
    """Lines that its run printed."""


@pytest.fixture(scope="session")
def comparison(tmp_path_factory) -> Comparison:
    """Return the campaign `comparison`, run from nothing to its page; tests must not change it."""
    project = Project(tmp_path_factory.mktemp("comparison"))
    arms = {arm: {"seeds": [0], "operations": short_campaign.BUDGET} for arm in ("soma-n2", "spsa-n1-p8")}
    config = short_campaign.checkout(project, "comparison", {}, arms)
    project.overlay({"products": short_campaign.COMPARISON}, base=config)
    planned = project.planned(config)
    return Comparison(project, config, planned, project.snakemake(config=config).stderr.splitlines())
