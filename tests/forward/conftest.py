"""Engines by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from soma.forward.cpu import CpuEngine
from soma.forward.engine import Engine
from soma.forward.reference import ReferenceEngine
from soma.forward.torch_engine import TorchEngine


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Engine]:
    """An engine by name; `cpu-ISA` is the kernel of that instruction set."""

    def make(name: str) -> Engine:
        if name == "reference":
            return ReferenceEngine()
        if name == "torch":
            return TorchEngine(torch.device("cpu"))
        monkeypatch.setenv("SOMA_CPU_ISA", name.removeprefix("cpu-"))
        return CpuEngine()

    return make
