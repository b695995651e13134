"""One tiny model for all tests of inference, and the engines available on this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tiny_model import Tiny, make


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make(tmp_path_factory.mktemp("inference"))


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
