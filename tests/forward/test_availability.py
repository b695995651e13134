"""Engines with wrong arguments, without a compiler and without the wanted instructions."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import KERNELS, make_case

from soma.errors import SomaError
from soma.forward import cpu, members, native
from soma.forward.registry import create
from soma.inference import compiled


def transposed(head):
    """Return the same numbers in another order in memory."""
    return head.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.skipif(not KERNELS, reason="the CPU engine is not built")
class TestArguments:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"experts": lambda c: c.experts.to(torch.float64)}, "theta must be float32"),
            ({"experts": lambda c: replace(c.experts, head=c.head.double())}, "head must be float32"),
            ({"experts": lambda c: replace(c.experts, theta=c.theta.T.contiguous().T)}, "theta of each expert must be"),
            ({"experts": lambda c: replace(c.experts, head=transposed(c.head))}, "head of each expert"),
            ({"tokens": lambda c: c.tokens[:1]}, "nothing to predict for 2 experts"),
            ({"tokens": lambda c: c.tokens.astype(np.int64)}, "contiguous uint8"),
            ({"tokens": lambda c: c.tokens[:, :, ::2]}, "contiguous uint8"),
            ({"tokens": lambda c: c.tokens[:, :, :1].copy()}, "nothing to predict"),
            ({"eps": lambda c: [1e-3]}, "1 values of eps"),
            ({"probes": lambda c: replace(c.probes, experts=(1,))}, "probes for 1"),
            ({"probes": lambda c: make_case(8).probes}, "probes are for"),
        ],
    )
    def test_are_checked_before_the_kernel_sees_them(self, change, message):
        case = make_case(16)
        with pytest.raises(ValueError, match=message):
            replace(case, **{name: value(case) for name, value in change.items()}).losses(cpu.CpuEngine())

    def test_unknown_instruction_set(self, monkeypatch):
        monkeypatch.setenv("SOMA_CPU_ISA", "sse9")
        with pytest.raises(SomaError, match="avx512, avx2, plain"):
            cpu.CpuEngine()

    def test_auto_takes_the_kernel(self):
        assert create("auto").name == "cpu"


def test_auto_takes_torch_without_the_kernel(monkeypatch, caplog):
    monkeypatch.setattr(cpu, "library", lambda isa: None)
    with caplog.at_level(logging.INFO, logger="soma"):
        assert create("auto").name == "torch"
    assert len(caplog.records) == 1
    assert "not built, or emulates" in caplog.text
    with pytest.raises(SomaError, match="compiler"):
        create("cpu")


def test_build_without_a_compiler_succeeds_and_says_so(root, tmp_path):
    """The step of `pip install` that compiles, with a compiler that does not exist."""
    environment = os.environ | {"CC": "no-such-compiler", "CXX": "no-such-compiler"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", tmp_path / "lib", "--build-temp", tmp_path]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if "CPU engine" in line]
    assert len(lines) == 1
    assert "torch" in lines[0]
    assert not list(tmp_path.rglob("*.so"))


def test_shared_library_of_other_sources_is_refused(monkeypatch):
    class Library:
        def __getattr__(self, name):
            return lambda *_: 1

        soma_supported = staticmethod(lambda: 1)
        soma_problem_bytes = staticmethod(lambda: 8)

    if not KERNELS:
        pytest.skip("the CPU engine is not built")
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda path: Library())
    cpu.library.cache_clear()
    try:
        with pytest.raises(SomaError, match="reinstall"):
            cpu.library(KERNELS[0].removeprefix("cpu-"))
    finally:
        cpu.library.cache_clear()


@pytest.mark.parametrize("edited", ["forward/csrc/simd.h", "forward/csrc/flags.json", *native.SOURCES.values()])
def test_a_library_of_edited_sources_is_refused(root, tmp_path, monkeypatch, edited):
    """Also by `auto`, which would otherwise compute with torch, or record old results as those of the new code."""
    if not KERNELS:
        pytest.skip("the CPU engine is not built")
    isa = KERNELS[0].removeprefix("cpu-")
    modules = {library: f"{library}_{isa}" for library in native.SOURCES}
    assert all(native.built(module) for module in modules.values())
    for folder in ("forward/csrc", "inference/csrc"):
        shutil.copytree(root / "src/soma" / folder, tmp_path / folder)
    monkeypatch.setattr(native, "_PACKAGE", tmp_path)
    caches = (native.check_sources, cpu.library, members.library, compiled.load)
    for cache in caches:
        cache.cache_clear()
    try:
        assert all(native.built(module) for module in modules.values())
        native.check_sources.cache_clear()
        with (tmp_path / edited).open("a") as file:
            file.write(" ")
        stale = [
            library for library in modules if edited not in native.SOURCES.values() or native.SOURCES[library] == edited
        ]
        for library, module in modules.items():
            if library in stale:
                with pytest.raises(SomaError, match="built from other sources than this package's; reinstall"):
                    native.built(module)
            else:
                assert native.built(module)
        if "soma.forward._cpu" in stale:
            with pytest.raises(SomaError, match="reinstall"):
                create("auto")
        (tmp_path / "forward/csrc/engine.cpp").unlink()  # a package without its sources has nothing to compare
        assert native.built(modules["soma.forward._cpu"])
    finally:
        for cache in caches:
            cache.cache_clear()


def test_threads_follow_torch():
    if not KERNELS:
        pytest.skip("the CPU engine is not built")
    torch.set_num_threads(3)
    case = make_case(8)
    assert cpu._model(case.experts, case.tokens).threads == 3
