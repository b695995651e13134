import pytest

from tests.workflow.conftest import Project


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path)
