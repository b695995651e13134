"""One campaign, run once in one repository; tests work in copies and clones of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.dvc.repository import Repository, new_repository, write_metrics


@pytest.fixture(scope="session")
def origin(tmp_path_factory) -> Repository:
    """Return the tiny campaign: run, recorded, pushed to the remote in the repository, committed; do not change it."""
    repository = new_repository(tmp_path_factory.mktemp("origin"))
    write_metrics(repository, 0.0)
    assert "recorded in dvc.lock" in repository.run("soma", "snapshot").stdout
    repository.dvc("push")
    repository.commit("The tiny campaign")
    return repository


@pytest.fixture
def copy(origin, tmp_path) -> Repository:
    """Return a copy of the origin to work in."""
    shutil.copytree(origin.folder, tmp_path / "copy", symlinks=True)
    return Repository(tmp_path / "copy")


@pytest.fixture
def clone(origin, tmp_path) -> Callable[..., Repository]:
    """Return a fresh clone after `dvc pull`; links is DVC's `cache.type`."""

    def make(*pull: str, links: str = "copy") -> Repository:
        repository = origin.clone(tmp_path / "clone")
        repository.configure(cache={"type": links})
        repository.dvc("pull", *pull)
        return repository

    return make
