"""Shared by all tests: one thread per process, so that results do not depend on who else is working."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)

ROOT = Path(__file__).parent.parent


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT
