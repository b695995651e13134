"""CPU runner: a C++ kernel whose lanes hold features, fast for few sequences per expert (csrc/infer.cpp).

Weights are packed once, when the runner is created. Shapes as in `soma.inference.runner`; L depth, D padded width.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from soma.forward import cpu, native
from soma.inference.runner import Runner
from soma.models.experts import Experts
from soma.models.spec import VOCABULARY

_int, _long, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class _Request(ctypes.Structure):
    """`Request` of csrc/infer.cpp, field by field."""

    _fields_ = (
        *((name, _int) for name in ("pairs", "time", "scored", "threads")),
        ("rows", _long),
        *((name, _pointer) for name in ("expert", "sequence", "tokens")),
        ("stride", _long),
        *((name, _pointer) for name in ("states", "losses", "probabilities")),
    )


class CompiledRunner(Runner):
    """Experts packed for the kernel, which uses as many threads as torch (`torch.set_num_threads`)."""

    name = "cpu"
    source = "csrc/infer.cpp"
    """Source of the library; part of the code digest (soma.workflow.digests)."""

    def __init__(self, experts: Experts) -> None:
        _, self._library = native.fastest(load, "the inference kernel", "the engine")
        tensors = (experts.theta, experts.distinct_heads)
        theta, head = (x.detach().to("cpu", torch.float32).contiguous() for x in tensors)
        spec, opened = experts.spec, _pointer()
        sizes = (spec.width, spec.depth, spec.embedding, len(experts))
        weights = (theta.data_ptr(), theta.numel(), head.data_ptr(), head.numel())
        status = self._library.soma_infer_open(*sizes, *weights, ctypes.byref(opened))
        _check(status, f"the kernel takes no {len(experts)} experts of {spec}")
        self._ensemble = opened.value
        weakref.finalize(self, self._library.soma_infer_close, self._ensemble)
        self._state = int(self._library.soma_infer_state(self._ensemble))

    def losses(
        self, expert: NDArray[np.integer], sequence: NDArray[np.integer], tokens: NDArray[np.uint8], scored: int
    ) -> NDArray[np.float64]:
        out = np.empty((len(expert), scored))
        self._run(expert, sequence, tokens, tokens.shape[1] - 1, scored, losses=out.ctypes.data)
        return out

    def start(self, pairs: int) -> NDArray[np.float32]:
        """Return zero states [P, 2 L D]."""
        return np.zeros((pairs, self._state), np.float32)

    def advance(
        self, expert: NDArray[np.integer], tokens: NDArray[np.uint8], state: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        if state.shape != (len(expert), self._state) or not state.flags.c_contiguous:
            raise ValueError(f"a state of shape {state.shape} does not fit {len(expert)} pairs")
        out = np.empty((len(expert), VOCABULARY), np.float32)
        rows = np.arange(len(expert))
        self._run(
            expert, rows, tokens, tokens.shape[1], 1, states=state.ctypes.data, probabilities=out.ctypes.data
        )  # fmt: skip
        wide = out.astype(np.float64)
        return wide / wide.sum(axis=1, keepdims=True)

    def _run(
        self,
        expert: NDArray[np.integer],
        sequence: NDArray[np.integer],
        tokens: NDArray[np.uint8],
        time: int,
        scored: int,
        **results: int,
    ) -> None:
        experts, rows = (np.ascontiguousarray(x, np.int32) for x in (expert, sequence))
        read = np.ascontiguousarray(tokens, np.uint8)
        request = _Request(
            pairs=len(experts),
            time=time,
            scored=scored,
            threads=torch.get_num_threads(),
            rows=len(read),
            expert=experts.ctypes.data,
            sequence=rows.ctypes.data,
            tokens=read.ctypes.data,
            stride=read.shape[1],
            **results,
        )
        status = self._library.soma_infer_run(self._ensemble, ctypes.byref(request))
        _check(
            status, f"pairs need one of the experts and one of {len(read)} sequences, and 1 to {time} scored positions"
        )


def _check(status: int, wrong: str) -> None:
    """Raise the error of a status of csrc/infer.cpp; `wrong` says what may be wrong with the arguments."""
    if status == 1:
        raise MemoryError("the inference kernel ran out of memory")
    if status:
        raise ValueError(wrong)


def available() -> bool:
    """Return True if a kernel was built that this machine can run."""
    return any(load(isa) is not None for isa in native.INSTRUCTION_SETS)


@cache
def load(isa: str) -> ctypes.CDLL | None:
    """Return the kernel for an instruction set; None if it was not built or this processor lacks the instructions."""
    if cpu.library(isa) is None:  # the engine's library checks the processor
        return None
    path = native.built(f"soma.inference._cpu_{isa}")
    loaded = None if path is None else native.open_library(path)
    if path is None or loaded is None:
        return None
    loaded.soma_infer_open.argtypes = [*(ctypes.c_int,) * 4, _pointer, _long, _pointer, _long, _pointer]
    loaded.soma_infer_close.argtypes, loaded.soma_infer_close.restype = [_pointer], None
    loaded.soma_infer_state.argtypes, loaded.soma_infer_state.restype = [_pointer], _long
    loaded.soma_infer_run.argtypes = [_pointer, _pointer]
    native.check_structure(path, loaded.soma_infer_request_bytes(), _Request)
    return loaded
