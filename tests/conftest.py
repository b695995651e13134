"""Shared by all tests: one thread per process, so that results do not depend on who else is working."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.project import ROOT, Project

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)

_LONG = ("workflow", "dvc", "cluster")
"""Folders whose tests share what takes long to set up: the toy campaign, a repository, a cluster."""
_PATIENT = ("dvc", "cluster")
"""Those of them that end long before the tests of the toy campaign, which should have the processors first."""


def _group(file: str) -> str:
    folder = Path(file).parent.name
    return folder if folder in _LONG else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that with `-n` no worker is left with it at the end."""
    items.sort(key=lambda item: _LONG.index(g) if (g := _group(str(item.path))) in _LONG else len(_LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors, since the cluster's tests wait most of their time."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With `-n`, one worker runs all tests of a file, or of a folder of `_LONG`.

    By hand, since `--dist loadgroup` marks groups in an attribute that pytest 9.2 no longer reads (xdist 3.8).
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.split("::")[0])

    return ByGroup(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """With `-n`, a worker that has begun with what can wait goes on at a lower priority."""
    among_others = hasattr(item.config, "workerinput")
    if among_others and _group(str(item.path)) in _PATIENT and os.getpriority(os.PRIO_PROCESS, 0) == 0:
        os.nice(5)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A checkout to break."""
    return Project(tmp_path)


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT
