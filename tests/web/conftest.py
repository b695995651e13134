"""One tiny model for all tests of the page."""

from __future__ import annotations

import pytest
from tests.inference.tiny_model import Tiny, make


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make(tmp_path_factory.mktemp("demo"))
