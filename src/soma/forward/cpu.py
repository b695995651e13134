"""The CPU engine: a fused C++ kernel, one perturbed copy per thread at a time (csrc/, built by setup.py).

The batch lies in SIMD lanes and the whole network runs per time step, so that weights and activations of a copy stay in
cache and only losses are written. A copy too large for that takes eight steps of a layer at a time, so that most of its
weights are read once for eight steps. Rademacher probes are regenerated from their counters inside the kernel; Gaussian
ones are passed to it.

Every processor, instruction set, compiler and number of threads gives the same bytes (csrc/simd.h). On a processor
without fused multiply-add the `plain` kernel emulates it, which is slow; `auto` then prefers torch.

Shapes: E experts, J directions, S signs, B sequences, T predicted bytes, M body parameters, V = 256 bytes, H embedding
width.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.forward import native
from soma.forward.engine import Engine, Problem, check_coefficients
from soma.forward.probes import Probes, kept_bits
from soma.models.experts import Experts
from soma.models.spec import VOCABULARY

log = logging.getLogger("soma.forward")

_NORMALS = 1 << 28
"""Gaussian numbers passed at once (1 GB); more directions are processed in turn, with the same result."""

_int, _long, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class _Problem(ctypes.Structure):
    """`Problem` of csrc/engine.cpp, field by field."""

    _fields_ = (
        *((name, _int) for name in ("width", "depth", "embedding", "experts", "batch", "time")),
        *((name, _int) for name in ("directions", "threads")),
        ("size", _long),
        *((name, _pointer) for name in ("theta", "head")),
        *((name, _long) for name in ("theta_stride", "head_stride")),
        ("tokens", _pointer),
        ("key", ctypes.c_uint64),
        ("update", ctypes.c_uint32),
        ("signs", _int),
        *((name, _pointer) for name in ("expert_ids", "direction_ids", "kept", "normals", "steps")),
        *((name, _pointer) for name in ("sequence_losses", "token_losses", "hidden")),
    )

    def hold(self, array: NDArray[np.generic]) -> int:
        """Return the address of an array, kept alive as long as this object."""
        self.__dict__.setdefault("held", []).append(array)
        return array.ctypes.data


class CpuEngine(Engine):
    """The compiled kernel, with as many threads as torch uses (`torch.set_num_threads`)."""

    name = "cpu"
    exact = True
    source = "csrc/engine.cpp"
    """Source of the library, which the digest of the code includes (soma.workflow.digests)."""

    def __init__(self, built: ctypes.CDLL | None = None) -> None:
        """Load the library for this machine, or for the instruction set in SOMA_CPU_ISA.

        Args:
            built: another library to use (see `load`).

        Raises:
            SomaError: if the library was not built, or the processor lacks the instructions.
        """
        if built is not None:
            self.isa, self._library = "given", built
            return
        self.isa, self._library = native.fastest(library, "the CPU engine", "compute.engine")
        if self.emulated:
            log.info(
                "the CPU engine emulates fused multiply-add: the same bytes as on other processors, but many times "
                "slower; compute.engine: torch is faster."
            )

    @property
    def emulated(self) -> bool:
        """True if fused multiply-adds are emulated, which is slow."""
        return bool(self._library.soma_emulated())

    def _losses(self, at: Problem) -> NDArray[np.float64]:
        probes, signs = at.probes, at.signs
        problem = _model(at.experts, at.tokens)
        chunk = max(1, _NORMALS // (problem.experts * problem.size))
        if probes.kind == "gaussian" and len(probes.directions) > chunk:
            parts = (probes.part(slice(None), slice(i, i + chunk)) for i in range(0, len(probes.directions), chunk))
            return np.concatenate([self._losses(replace(at, probes=part)) for part in parts], axis=1)
        _probes(problem, probes)
        problem.signs = len(signs)
        problem.steps = problem.hold(np.outer(at.eps, signs).astype(np.float32))
        out = np.empty((problem.experts, problem.directions, len(signs), problem.batch))
        problem.sequence_losses = out.ctypes.data
        if out.size:
            _check(self._library.soma_forward(ctypes.byref(problem)))
        # Sum sequence by sequence, so that the order is fixed here and not by numpy's choice of algorithm.
        total = np.zeros(out.shape[:3])
        for b in range(problem.batch):
            total += out[..., b]
        return total / (problem.batch * problem.time)

    def token_losses(self, experts: Experts, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        problem = _model(experts, tokens)
        out = np.empty((problem.experts, problem.batch, problem.time))
        problem.token_losses = out.ctypes.data
        _check(self._library.soma_forward(ctypes.byref(problem)))
        return out

    def hidden(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        problem = _model(experts, tokens)
        out = torch.empty(problem.experts, problem.batch, problem.time, problem.embedding, dtype=torch.float32)
        problem.hidden = out.data_ptr()
        _check(self._library.soma_forward(ctypes.byref(problem)))
        return out

    def head_gradient(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        problem = _model(experts, tokens)
        out = torch.empty(problem.experts, VOCABULARY, problem.embedding, dtype=torch.float32)
        _check(self._library.soma_head_gradient(ctypes.byref(problem), out.data_ptr()))
        return out

    def packed(self, probes: Probes) -> NDArray[np.uint32]:
        """Compute `probes.packed()` in the kernel; [E, J, blocks, 4]."""
        if probes.kind == "gaussian":
            raise ValueError("a gaussian probe has no bits; use its normals")
        problem = _Problem()
        _probes(problem, probes)
        out = np.empty((len(probes.experts), len(probes.directions), -(-probes.spec.size // 64), 4), dtype=np.uint32)
        _check(self._library.soma_packed(ctypes.byref(problem), out.ctypes.data))
        return out

    def combine(self, probes: Probes, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute sum_j c_j z_j for coefficients [E, J], in the order of j; float64 [E, M]."""
        check_coefficients(probes, coefficients)
        if probes.kind == "gaussian":
            return super().combine(probes, coefficients)
        problem = _Problem()
        _probes(problem, probes)
        out = np.empty((len(probes.experts), probes.spec.size))
        values = np.ascontiguousarray(coefficients)
        _check(self._library.soma_combine(ctypes.byref(problem), values.ctypes.data, out.ctypes.data))
        return out

    def peak(self, rounds: int) -> float:
        """Run a loop of multiply-adds alone and return its number of operations, for benchmarks."""
        return self._library.soma_peak(rounds)


def available() -> bool:
    """Return True if a kernel was built that runs at full speed on this machine."""
    kernels = (library(isa) for isa in native.INSTRUCTION_SETS)
    return any(kernel is not None and not kernel.soma_emulated() for kernel in kernels)


@cache
def library(isa: str) -> ctypes.CDLL | None:
    """Return the kernel for an instruction set; None if it was not built or this processor lacks the instructions."""
    path = native.built(f"soma.forward._cpu_{isa}")
    return None if path is None else load(path)


def load(path: str) -> ctypes.CDLL | None:
    """Return the kernel in a file; None if this machine cannot run it.

    Raises:
        SomaError: if it was built from other sources.
    """
    loaded = native.open_kernel(path, _Problem)
    if loaded is None:
        return None
    loaded.soma_forward.argtypes = [_pointer]
    loaded.soma_head_gradient.argtypes = [_pointer, _pointer]
    loaded.soma_packed.argtypes = [_pointer, _pointer]
    loaded.soma_combine.argtypes = [_pointer, _pointer, _pointer]
    loaded.soma_peak.argtypes, loaded.soma_peak.restype = [_long], ctypes.c_double
    return loaded


def _model(experts: Experts, tokens: NDArray[np.uint8]) -> _Problem:
    """Return a problem with the fields that every pass needs."""
    if tokens.dtype != np.uint8 or tokens.ndim != 3 or not tokens.flags.c_contiguous:
        raise ValueError(f"tokens must be contiguous uint8 [E, B, T + 1], not {tokens.dtype} {tokens.shape}")
    n, batch, time = tokens.shape[0], tokens.shape[1], tokens.shape[2] - 1
    if n != len(experts) or min(n, batch, time) < 1:
        raise ValueError(f"tokens {tokens.shape} hold nothing to predict for {len(experts)} experts")
    spec, theta, head = experts.spec, experts.theta, experts.head
    _check_tensor("theta", theta)
    _check_tensor("head", head)
    return _Problem(
        width=spec.width,
        depth=spec.depth,
        embedding=spec.embedding,
        experts=n,
        batch=batch,
        time=time,
        threads=torch.get_num_threads(),
        size=spec.size,
        theta=theta.data_ptr(),
        head=head.data_ptr(),
        theta_stride=theta.stride(0),
        head_stride=head.stride(0),
        tokens=tokens.ctypes.data,
    )


def _check_tensor(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        raise ValueError(f"{name} must be float32 on the CPU, not {tensor.dtype} on {tensor.device}")
    if not tensor[0].is_contiguous():  # experts may share one head, whose stride is then free
        raise ValueError(f"{name} of each expert must be contiguous")


def _probes(problem: _Problem, probes: Probes) -> None:
    """Set the fields of the directions."""
    problem.size, problem.experts, problem.directions = probes.spec.size, len(probes.experts), len(probes.directions)
    problem.threads = torch.get_num_threads()
    problem.key, problem.update = probes.stream.key, probes.update & 0xFFFFFFFF
    problem.expert_ids = problem.hold(np.array(probes.experts, dtype=np.uint32))
    problem.direction_ids = problem.hold(np.array(probes.directions, dtype=np.uint32))
    if probes.kind == "gaussian":
        problem.normals = problem.hold(probes.normals())
    else:
        problem.kept = problem.hold(kept_bits(probes.spec, probes.kind))


def _check(status: int) -> None:
    if status:
        raise MemoryError("the CPU engine ran out of memory")
