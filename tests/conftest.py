"""Shared by all tests: one thread per process, so that results do not depend on who else is working."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n`, one worker runs the tests that share the toy campaign, first; the others run file by file."""

    def group(item: pytest.Item) -> str:
        if "toy" in getattr(item, "fixturenames", ()):
            return "toy"
        whole = item.path.parent.name if item.path.parent.name in ("dvc", "cluster") else None
        return whole or str(item.path)

    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=lambda item: _LONG.index(g) if (g := group(item)) in _LONG else len(_LONG))


_LONG = ("toy", "dvc", "cluster")


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT
