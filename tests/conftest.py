"""Shared settings of all tests: one thread per process, so that results do not depend on the machine's load."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.project import ROOT, Project

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
    os.environ.pop(name, None)  # `make` in a test is not a part of the `make test` that started it

_LONG = ("workflow", "dvc", "cluster")
"""Folders whose tests share a slow fixture: the toy campaign, a repository, a cluster."""
_NEXT = ("test_distributed.py", "test_elsewhere.py")
"""Files that take a minute each."""
_PATIENT = ("dvc", "cluster")
"""Folders that finish long before the tests of the toy campaign, which should get the processors first."""


def _group(file: str) -> str:
    folder = Path(file).parent.name
    return folder if folder in _LONG else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that with `-n` no worker starts one at the end."""
    first = [*_LONG, *_NEXT]

    def place(item: pytest.Item) -> int:
        group = Path(_group(str(item.path))).name
        return first.index(group) if group in first else len(first)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start one more worker than there are processors, since the cluster's tests mostly wait."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With `-n`, let one worker run all tests of a file, or of a folder in `_LONG`.

    This is done by hand: `--dist loadgroup` marks groups in an attribute that pytest 9.2 no longer reads (xdist 3.8).
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid.split("::")[0])

    return ByGroup(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """With `-n`, lower the priority of a worker that has started tests which can wait."""
    among_others = hasattr(item.config, "workerinput")
    if among_others and _group(str(item.path)) in _PATIENT and os.getpriority(os.PRIO_PROCESS, 0) == 0:
        os.nice(5)


_NEEDED = os.environ.get("SOMA_TESTS_NEED", "").split()
"""Tools without which a test must fail instead of being skipped (.ci/run)."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Let a skip for want of a needed tool fail."""
    report = yield
    # A worker of pytest-xdist cannot send what was captured if it is no UTF-8.
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    if report.skipped and isinstance(report.longrepr, tuple):
        missing = [tool for tool in _NEEDED if re.search(rf"\b{re.escape(tool)}\b", report.longrepr[2])]
        if missing:
            report.outcome, report.longrepr = (
                "failed",
                f"skipped, although {missing[0]} is needed: {report.longrepr[2]}",
            )
    return report


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a checkout that the test may modify."""
    return Project(tmp_path)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return the system's Chromium, driven by playwright; one for all tests of a worker."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Its sandbox needs rights that a container lacks; the pages are our own files.
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def root() -> Path:
    """Return the root of the repository."""
    return ROOT
