"""The toy campaign, which the tests of this folder share."""

import subprocess

import pytest

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
