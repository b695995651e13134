"""The toy campaign, which the tests of this folder share."""

import pytest

from tests.project import Project


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Project:
    """The toy campaign, run once from nothing. Tests must leave it as they find it."""
    project = Project(tmp_path_factory.mktemp("toy"))
    project.snakemake()
    return project
