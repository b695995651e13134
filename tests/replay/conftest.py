"""The tiny campaign of tiny_campaign.py, run once."""

import shutil
from pathlib import Path

import pytest

from tests.replay.tiny_campaign import make


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """Return the campaign; tests must not change it."""
    results = tmp_path_factory.mktemp("campaign") / "results/tiny"
    make(results, tmp_path_factory.mktemp("work"))
    return results


@pytest.fixture
def results(finished, tmp_path) -> Path:
    """Return a copy that tests may damage."""
    return Path(shutil.copytree(finished, tmp_path / "results/tiny"))
