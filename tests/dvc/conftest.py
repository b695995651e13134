"""One campaign, run once, in one repository; tests work in copies and clones of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.dvc.repository import Repository, new_repository, write_metrics


@pytest.fixture(scope="session")
def origin(tmp_path_factory) -> Repository:
    """The tiny campaign: run, recorded, pushed to the remote inside the repository, committed. Not to be changed."""
    repository = new_repository(tmp_path_factory.mktemp("origin"))
    write_metrics(repository, 0.0)
    assert "recorded in dvc.lock" in repository.run("soma", "snapshot").stdout
    repository.dvc("push")
    repository.commit("The tiny campaign")
    return repository


@pytest.fixture
def copy(origin, tmp_path) -> Repository:
    """A copy of the origin as it stands, to work in."""
    shutil.copytree(origin.folder, tmp_path / "copy", symlinks=True)
    return Repository(tmp_path / "copy")


@pytest.fixture
def clone(origin, tmp_path) -> Callable[..., Repository]:
    """A fresh clone with what `dvc pull` brings; links: DVC's `cache.type`."""

    def make(*pull: str, links: str = "copy") -> Repository:
        repository = origin.clone(tmp_path / "clone")
        repository.configure(cache={"type": links})
        repository.dvc("pull", *pull)
        return repository

    return make
