"""Campaigns that the tests of this folder share: the toy campaign, and a comparison of two arms."""

import subprocess

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


@pytest.fixture(scope="session")
def comparison(tmp_path_factory) -> Project:
    """Return a campaign that compares two arms and has nothing else, run once; tests must not change it."""
    project = Project(tmp_path_factory.mktemp("comparison"))
    arms = {arm: {"seeds": [0], "operations": short_campaign.BUDGET} for arm in ("soma-n2", "spsa-n1-p8")}
    base = short_campaign.checkout(project, "comparison", {}, arms)
    project.overlay({"products": short_campaign.COMPARISON}, base=base)
    project.snakemake(config=base)
    return project
