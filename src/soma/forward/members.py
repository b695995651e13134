"""Engines for EGGROLL's members: the factors of their perturbations, and their losses.

`KernelMembers` is a C++ kernel (csrc/members.cpp, built by setup.py) with the members in SIMD lanes. Every processor,
instruction set, compiler, number of threads and division of the pairs gives the same bytes (csrc/simd.h).
`TorchMembers` is the form in torch, for any device and, in float64, the reference; a product of another shape may round
its losses differently.

Both draw the same factors: logarithm, sine and cosine differ by some 1e-15 between libraries, and factors are rounded
to 2^-12, so that about one factor in 10^11 differs by one step.

Shapes: P pairs, T bytes, L depth, D width, K factors of a pair, M parameters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.forward import native
from soma.forward.rank_one import Members, Noise
from soma.models.gru import Nonlinearity, losses_and_state, token_losses

_int, _long, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_TILE = 16
"""Pairs of the widest kernel's tile; threads take whole tiles."""
_WINDOWS = 64
"""Windows evaluated at once, each by a pair without a perturbation."""


@dataclass(frozen=True)
class Population:
    """How the members of a population differ from its parameters."""

    noise: Noise
    sigma: float
    nonlinearity: Nonlinearity
    separator: int | None
    """Input byte before which states are zeroed; None for never."""


class MemberEngine(Protocol):
    """Computes what EGGROLL needs of some pairs."""

    exact: bool
    """True if every machine and division of the pairs gives the same bytes."""

    def factors(self, noise: Noise, pairs: range, update: int, device: torch.device) -> Tensor:
        """Draw the factors of these pairs; float64 [P, K], multiples of 2^-12."""

    def losses(
        self, population: Population, theta: Tensor, factors: Tensor, tokens: NDArray[np.uint8], states: Tensor
    ) -> tuple[NDArray[np.float64], Tensor]:
        """Compute the nats of members, summed over T bytes, and their states after them.

        Args:
            theta: [M].
            factors: [P, K].
            tokens: the bytes that each pair reads and the byte after them, [P, T + 1].
            states: before the first byte, [P, 2, L, D].

        Returns:
            losses [P, 2], + first, and states [P, 2, L, D].
        """

    def token_losses(self, population: Population, theta: Tensor, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Compute the nats that the unperturbed parameters give every target of windows [B, T + 1], each from the zero
        state; float64 [B, T].
        """


class TorchMembers:
    """Members in torch, on any device and in the precision of theta."""

    exact = False

    def factors(self, noise: Noise, pairs: range, update: int, device: torch.device) -> Tensor:
        return noise.factors(pairs, update, device)

    def losses(
        self, population: Population, theta: Tensor, factors: Tensor, tokens: NDArray[np.uint8], states: Tensor
    ) -> tuple[NDArray[np.float64], Tensor]:
        with torch.no_grad():
            losses, after = losses_and_state(
                population.noise.spec,
                Members(population.noise, theta, factors, population.sigma),
                torch.from_numpy(tokens).to(theta.device),
                states.to(theta.dtype),
                population.nonlinearity,
                population.separator,
            )
        return losses.double().sum(dim=2).cpu().numpy(), after

    def token_losses(self, population: Population, theta: Tensor, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        p = population
        return token_losses(p.noise.spec, theta, tokens, nonlinearity=p.nonlinearity, separator=p.separator)


class _Place(ctypes.Structure):
    """`Place` of csrc/members.cpp."""

    _fields_ = tuple((name, _long) for name in ("offset", "left", "right"))


class _Problem(ctypes.Structure):
    """`Problem` of csrc/members.cpp, field by field."""

    _fields_ = (
        *((name, _int) for name in ("width", "depth", "pairs", "time", "separator", "clip")),
        ("factors", _long),
        *((name, _pointer) for name in ("places", "theta", "noise", "tokens", "before")),
        ("sigma", ctypes.c_float),
        *((name, _pointer) for name in ("losses", "token_losses", "after")),
    )


class KernelMembers:
    """The compiled kernel for parameters in float32 on the CPU, with as many threads as torch uses."""

    exact = True
    source = "csrc/members.cpp"
    """Source of the library, which the digest of the code includes (soma.workflow.digests)."""

    def __init__(self, built: ctypes.CDLL | None = None) -> None:
        """Load the library for this machine, or for the instruction set in SOMA_CPU_ISA.

        Args:
            built: another library to use (see `load`).

        Raises:
            SomaError: if the library was not built, or the processor lacks the instructions.
        """
        self._library = built or native.fastest(library, "the kernel of EGGROLL", "compute.engine")[1]

    def factors(self, noise: Noise, pairs: range, update: int, device: torch.device) -> Tensor:
        out = torch.empty(len(pairs), noise.size, dtype=torch.float64)

        def draw(first: int, count: int) -> None:
            at = pairs.start + first
            address = out[first].data_ptr()
            self._library.soma_factors(noise.stream.key, update & 0xFFFFFFFF, at, count, noise.size, address)

        _share(len(pairs), draw)
        return out

    def losses(
        self, population: Population, theta: Tensor, factors: Tensor, tokens: NDArray[np.uint8], states: Tensor
    ) -> tuple[NDArray[np.float64], Tensor]:
        losses = np.empty((len(tokens), 2))
        return losses, self._run(population, theta, factors, tokens, states, losses, None)

    def token_losses(self, population: Population, theta: Tensor, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        spec, time = population.noise.spec, tokens.shape[1] - 1
        out = np.empty((len(tokens), time))
        for first in range(0, len(tokens), _WINDOWS):
            part = tokens[first : first + _WINDOWS]
            factors = torch.zeros(len(part), population.noise.size, dtype=torch.float64)
            zero = torch.zeros(len(part), 2, spec.depth, spec.width)
            pairs = np.empty((len(part), 2, time))
            self._run(population, theta, factors, part, zero, np.empty((len(part), 2)), pairs)
            out[first : first + _WINDOWS] = pairs[:, 0]
        return out

    def _run(
        self,
        population: Population,
        theta: Tensor,
        factors: Tensor,
        tokens: NDArray[np.uint8],
        states: Tensor,
        losses: NDArray[np.float64],
        token_losses: NDArray[np.float64] | None,
    ) -> Tensor:
        """Write losses [P, 2] and, unless None, those of every byte [P, 2, T]; return the states after them."""
        noise, spec, time = population.noise, population.noise.spec, tokens.shape[1] - 1
        if theta.dtype != torch.float32 or theta.device.type != "cpu":
            raise ValueError(f"theta must be float32 on the CPU, not {theta.dtype} on {theta.device}")
        theta, factors, before = theta.contiguous(), factors.contiguous(), states.float().contiguous()
        tokens = np.ascontiguousarray(tokens)
        after = torch.empty_like(before)
        places = [
            _Place(slot.offset, *(place.start for place in noise.places[slot.name])) for slot in noise.spec.layout
        ]
        table = (_Place * len(places))(*places)

        def run(first: int, count: int) -> None:
            problem = _Problem(
                width=spec.width,
                depth=spec.depth,
                pairs=count,
                time=time,
                separator=-1 if population.separator is None else population.separator,
                clip=population.nonlinearity == "clip",
                factors=noise.size,
                places=ctypes.addressof(table),
                theta=theta.data_ptr(),
                noise=factors[first].data_ptr(),
                tokens=tokens[first:].ctypes.data,
                before=before[first].data_ptr(),
                sigma=population.sigma,
                losses=losses[first:].ctypes.data,
                token_losses=None if token_losses is None else token_losses[first:].ctypes.data,
                after=after[first].data_ptr(),
            )
            if self._library.soma_members(ctypes.byref(problem)):
                raise MemoryError("the kernel of EGGROLL ran out of memory")

        _share(len(tokens), run)
        return after


def engine_of(name: str) -> MemberEngine:
    """Return the members' form of an engine (soma.forward.registry): the kernel for `cpu`, torch for the others."""
    return KernelMembers() if name == "cpu" else TorchMembers()


def _share(pairs: int, work: Callable[[int, int], None]) -> None:
    """Call work(first, count) for shares of the pairs, one per thread; the library runs without Python's lock."""
    share = -(-pairs // (_TILE * torch.get_num_threads())) * _TILE
    shares = [(first, min(share, pairs - first)) for first in range(0, pairs, share)]
    if len(shares) == 1:
        work(*shares[0])
        return
    with ThreadPoolExecutor(len(shares)) as pool:
        list(pool.map(work, *zip(*shares, strict=True)))


@cache
def library(isa: str) -> ctypes.CDLL | None:
    """Return the kernel for an instruction set; None if it was not built or this processor lacks the instructions."""
    path = native.built(f"soma.forward._members_{isa}")
    return None if path is None else load(path)


def load(path: str) -> ctypes.CDLL | None:
    """Return the kernel in a file; None if this machine cannot run it.

    Raises:
        SomaError: if it was built from other sources.
    """
    loaded = native.open_kernel(path, _Problem)
    if loaded is None:
        return None
    loaded.soma_factors.argtypes = [ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32, _int, _long, _pointer]
    loaded.soma_factors.restype = None
    loaded.soma_members.argtypes = [_pointer]
    return loaded
