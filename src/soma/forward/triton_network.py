"""The forward pass on a GPU: Triton kernels for many copies of one model at once, in chunks of time.

Each copy is a body in a *padded layout*: matrices are transposed to [in, out], and the width and the embedding width
are rounded up with zeros, which the network preserves. One index table maps its positions to coordinates, so that the
kernel that perturbs needs no knowledge of the model.

Copies are the perturbed bodies of one expert, which read the same bytes with the same head (`triton_engine`), or
different experts, each with its own bytes (`soma.inference.triton_runner`). Heads and bytes therefore have a leading
axis of P copies, or of 1 if all copies share them.

Up to a width of 32 a block is two kernels (`lstm_layer`, `mlp_layer`). In wider models, three quarters of the
operations do not depend on the recurrence and are matrix products over a whole chunk of time; the recurrence is one
batched product and one kernel per step, recorded as a CUDA graph, since at small widths a launch takes longer than the
computation.

Shapes: P copies, M parameters of a body, N of its padded layout, B sequences (padded), T time steps, R = T B rows of a
chunk of time, D padded width, H padded embedding width, V = 256 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
import triton
from numpy.typing import NDArray
from torch import Tensor

from soma.forward import triton_kernels as kernels
from soma.models.spec import VOCABULARY, LSTMSpec, Slot

NARROW = 32
"""Widest expert whose blocks are single kernels: beyond it the weights of a copy do not fit beside the other data."""

Precision = Literal["ieee", "tf32x3"]


@dataclass(frozen=True)
class Tuning:
    """Sizes that affect speed and memory, and results only by rounding."""

    lstm_tile: int = 16
    """Sequences per program of the LSTM kernel; B is padded to a multiple of it."""
    lstm_warps: int = 4
    lstm_registers: int | None = None
    """Maximum registers per thread: fewer may spill, but let more programs share a multiprocessor."""
    row_tile: int = 32
    """Rows per step of the MLP and decoder kernels."""
    row_warps: int = 4
    row_programs: int = 8
    """Programs per copy over rows."""
    norm_rows: int = 4
    """Rows per program of the normalisation kernel."""
    cells: int = 1024
    """Units per program of the kernel for a wide expert's LSTM step."""
    narrow_floats: int = 1 << 26
    """Floats in the residual stream of one chunk of time (256 MB)."""
    wide_floats: int = 1 << 30
    """Floats in the activations of one chunk of time of a wide expert (4 GB)."""
    copy_floats: int = 3 << 29
    """Floats in the perturbed bodies held at once (6 GB); more directions are processed in turn."""
    longest: int = 256
    """Maximum steps in one chunk of time, and in a wide expert's CUDA graph."""
    coordinates: int = 1024
    """Coordinates per program of the kernels that perturb and combine."""


@dataclass(frozen=True)
class Layout:
    """Positions of a body's tensors in its padded layout."""

    spec: LSTMSpec
    width: int
    """Padded width (D)."""
    embedding: int
    """Padded embedding width (H)."""
    at: dict[str, int]
    """First float of every tensor."""
    shape: dict[str, tuple[int, ...]]
    """Padded shape of every tensor, matrices [in, out]; the outputs of the gates and of `mlp_up` are four parts of
    D."""
    source: NDArray[np.int32]
    """Coordinate in the flat vector for each position, -1 for padding; [N]."""

    @property
    def narrow(self) -> bool:
        return self.width <= NARROW

    def matrix(self, copies: Tensor, name: str) -> Tensor:
        """Return a tensor of every copy: a view [P, in, out] of copies [P, N]."""
        size = int(np.prod(self.shape[name]))
        return copies[:, self.at[name] : self.at[name] + size].unflatten(1, self.shape[name])


@lru_cache(maxsize=8)
def layout(spec: LSTMSpec) -> Layout:
    """Return the padded layout of a model."""
    # Kernels need powers of two up to NARROW and for the decoder; matrix products prefer multiples of 16.
    narrow = spec.width <= NARROW
    d = max(16, triton.next_power_of_2(spec.width)) if narrow else -(-spec.width // 16) * 16
    h = max(16, triton.next_power_of_2(spec.embedding))
    at: dict[str, int] = {}
    shape: dict[str, tuple[int, ...]] = {}
    parts = []
    offset = 0
    for slot in spec.layout:
        source = _padded(slot, spec, d, h)
        at[slot.name], shape[slot.name] = offset, source.shape
        parts.append(source.reshape(-1))
        offset += source.size
    return Layout(spec, d, h, at, shape, np.concatenate(parts).astype(np.int32))


def _padded(slot: Slot, spec: LSTMSpec, d: int, h: int) -> NDArray[np.int64]:
    """Return the flat coordinates of a padded and transposed tensor, -1 for padding."""
    index = np.arange(slot.offset, slot.offset + slot.size).reshape(slot.shape)
    projected = {"project_in": (d, h), "project_out": (h, d)}.get(slot.name)
    for axis, n in enumerate(slot.shape):
        # An axis of 4 d is four parts of d, each padded separately; a projection has no such axis.
        count, to = (1, projected[axis]) if projected else (n // spec.width, d)
        split = np.moveaxis(index, axis, -1)
        split = split.reshape(*split.shape[:-1], count, n // count)
        split = np.pad(split, [(0, 0)] * (split.ndim - 1) + [(0, to - n // count)], constant_values=-1)
        index = np.moveaxis(split.reshape(*split.shape[:-2], count * to), -1, axis)
    return np.ascontiguousarray(index.T)


@dataclass(frozen=True)
class Network:
    """The forward pass of one model's copies on a device."""

    layout: Layout
    device: torch.device
    precision: Precision = "ieee"
    graphs: bool = True
    """True to record the recurrence of wide experts as CUDA graphs."""
    tuning: Tuning = field(default_factory=Tuning)

    def pad_bodies(self, theta: Tensor) -> Tensor:
        """Convert bodies [..., M] to the padded layout, [..., N]."""
        source = source_of(self.layout.spec, self.device)
        return torch.where(source < 0, 0.0, theta.to(self.device)[..., source.clamp(min=0)])

    def pad_heads(self, head: Tensor) -> Tensor:
        """Pad heads of any embedding width, [P or 1, V, H]."""
        return F.pad(head.to(self.device), (0, self.layout.embedding - head.shape[-1])).contiguous()

    def pad_tokens(self, tokens: Tensor) -> Tensor:
        """Transpose bytes [P or 1, sequences, T] to [P or 1, T, B]; sequences of zero bytes are added as padding."""
        read = tokens.to(self.device).transpose(1, 2)
        return F.pad(read, (0, -read.shape[2] % self.tuning.lstm_tile)).contiguous()

    def start(self, copies: int, sequences: int) -> Tensor:
        """Return the zero state: hidden and cell of every block, [2, depth, P, B, D]."""
        rows = sequences + -sequences % self.tuning.lstm_tile
        return torch.zeros(2, self.layout.spec.depth, copies, rows, self.layout.width, device=self.device)

    def forward(
        self, copies: Tensor, head: Tensor, inputs: Tensor, state: Tensor | None = None
    ) -> Iterator[tuple[range, Tensor]]:
        """Yield time steps and the residual stream [P, R, D] after the last block, for successive chunks of time.

        The next chunk overwrites the stream.

        Args:
            copies: padded bodies [P, N].
            head: padded heads [P or 1, V, H].
            inputs: padded bytes [P or 1, T, B].
            state: from `start`, advanced in place; None is the zero state.
        """
        p, d = len(copies), self.layout.width
        _, end, b = inputs.shape
        length = self._chunk(p * b, end)
        if state is None:
            state = self.start(p, b)
        own = torch.arange(len(head), device=self.device)[:, None]
        narrow = torch.empty(p * length * b * d if self.layout.narrow else 0, device=self.device)
        wide: _Wide | None = None
        for first in range(0, end, length):
            steps = range(first, min(first + length, end))
            x = head[own, inputs[:, steps.start : steps.stop].flatten(1).long()].contiguous()
            if self.layout.spec.projected:
                x = torch.bmm(x.expand(p, -1, -1), self.layout.matrix(copies, "project_in"))
            if self.layout.narrow:
                stream = narrow[: p * len(steps) * b * d].view(p, -1, d)
                self._narrow(copies, x, stream, state, len(steps))
            else:
                if wide is None or wide.steps != len(steps):
                    wide = None  # free its memory before allocating more
                    wide = _Wide(self, copies, state, len(steps))
                stream = wide.stream
                stream.copy_(x[..., :d])
                wide.run()
            yield steps, stream

    def hidden(self, copies: Tensor, stream: Tensor) -> Tensor:
        """Return the head's input, [P, R, D or H], for the residual stream [P, R, D]."""
        x = torch.empty_like(stream)
        self.norm(copies, stream, x, "norm")
        return torch.bmm(x, self.layout.matrix(copies, "project_out")) if self.layout.spec.projected else x

    def norm(self, copies: Tensor, x: Tensor, out: Tensor, name: str) -> None:
        """Compute out = LN(x) with the gain called `name`, both [P, R, D]."""
        p, rows, d = x.shape
        kernels.norm_rows[(triton.cdiv(rows, self.tuning.norm_rows), p)](
            out,
            x,
            copies,
            copies.shape[1],
            self.layout.at[name],
            rows,
            WIDTH=self.layout.spec.width,
            D=d,
            BLOCK=triton.next_power_of_2(d),
            TILE=self.tuning.norm_rows,
        )

    def losses(self, copies: Tensor, head: Tensor, tokens: Tensor, skip: int = 0) -> Iterator[tuple[range, Tensor]]:
        """Yield time steps and float32 nats [P, T, B] of the bytes that follow them, for successive chunks of time.

        Args:
            copies, head: as in `forward`.
            tokens: padded bytes [P or 1, T + 1, B].
            skip: number of first steps; chunks within them are omitted.
        """
        for steps, stream in self.forward(copies, head, tokens[:, :-1]):
            if steps.stop > skip:
                yield steps, self._cross_entropy(copies, head, stream, tokens[:, steps.start + 1 : steps.stop + 1])

    def _chunk(self, sequences: int, end: int) -> int:
        """Return the time steps in one chunk, given the sequences of all copies: a power of two, or all steps."""
        # A wide chunk holds its stream, projected and normalised inputs, gates and the MLP's outputs but the last.
        narrow = self.layout.narrow
        streams, budget = (1, self.tuning.narrow_floats) if narrow else (11, self.tuning.wide_floats)
        longest = max(1, min(self.tuning.longest, budget // (streams * sequences * self.layout.width)))
        return end if end <= longest else 1 << (longest.bit_length() - 1)

    def _narrow(self, copies: Tensor, x: Tensor, out: Tensor, state: Tensor, steps: int) -> None:
        """Apply all blocks to inputs x [P or 1, R, D], writing to out [P, R, D]."""
        p, rows, d = out.shape
        n = copies.shape[1]
        b = rows // steps
        common = {"WIDTH": self.layout.spec.width, "D": d, "PRECISION": self.precision, "num_stages": 1}
        registers = {"maxnreg": self.tuning.lstm_registers} if self.tuning.lstm_registers else {}
        for block in range(self.layout.spec.depth):
            at = {name: self.layout.at[f"blocks.{block}.{name}"] for name in _BLOCK_TENSORS}
            kernels.lstm_layer[(p, b // self.tuning.lstm_tile)](
                x,
                _stride(x),
                out,
                state[0, block],
                state[1, block],
                copies,
                n,
                at["lstm_norm"],
                at["lstm_input"],
                at["lstm_hidden"],
                b,
                steps,
                TILE=self.tuning.lstm_tile,
                num_warps=self.tuning.lstm_warps,
                **registers,
                **common,
            )
            kernels.mlp_layer[self._row_grid(p, rows)](
                out,
                copies,
                n,
                at["mlp_norm"],
                at["mlp_up"],
                at["mlp_down"],
                rows,
                TILE=self.tuning.row_tile,
                num_warps=self.tuning.row_warps,
                **common,
            )
            x = out

    def _cross_entropy(self, copies: Tensor, head: Tensor, stream: Tensor, targets: Tensor) -> Tensor:
        """Compute the nats [P, T, B] of targets [P or 1, T, B] after the residual stream [P, R, D]."""
        projected = self.layout.spec.projected
        x = self.hidden(copies, stream) if projected else stream
        p, rows, d = x.shape
        losses = torch.empty(p, rows, device=self.device)
        kernels.cross_entropy[self._row_grid(p, rows)](
            losses,
            x,
            copies,
            copies.shape[1],
            self.layout.at["norm"],
            head,
            _stride(head),
            targets,
            _stride(targets),
            rows,
            WIDTH=self.layout.spec.width,
            D=d,
            H=self.layout.embedding,
            V=VOCABULARY,
            NORM=not projected,
            TILE=self.tuning.row_tile,
            PRECISION=self.precision,
            num_warps=self.tuning.row_warps,
            num_stages=1,
        )
        return losses.view(p, *targets.shape[1:])

    def _row_grid(self, copies: int, rows: int) -> tuple[int, int]:
        return copies, min(self.tuning.row_programs, triton.cdiv(rows, self.tuning.row_tile))


_BLOCK_TENSORS = ("lstm_norm", "lstm_input", "lstm_hidden", "mlp_norm", "mlp_up", "mlp_down")


def _stride(x: Tensor) -> int:
    """Return the elements between two copies' parts of [P or 1, ...]; 0 if all copies share it."""
    return x.stride(0) if len(x) > 1 else 0


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the one that triton launches on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class _Wide:
    """The blocks of wide copies over a chunk of `steps`, on buffers with fixed addresses, as graphs require.

    Shapes as in the module; gates are [P, R, 4D].
    """

    def __init__(self, network: Network, copies: Tensor, state: Tensor, steps: int) -> None:
        self.network, self.copies, self.state, self.steps = network, copies, state, steps
        p, b, d = state.shape[2:]
        self.stream = torch.empty(p, steps * b, d, device=copies.device)
        self._normed = torch.empty_like(self.stream)
        self._inner = torch.empty(p, steps * b, 4 * d, device=copies.device)
        graphs = network.graphs and copies.device.type == "cuda"
        self._recurrences = [_Recorded(graphs) for _ in range(network.layout.spec.depth)]

    def run(self) -> None:
        """Apply all blocks in place to `stream`, from the state after the previous chunk."""
        for block, recurrence in enumerate(self._recurrences):
            name = f"blocks.{block}"
            self._product(f"{name}.lstm_norm", f"{name}.lstm_input")
            recurrence(partial(self._recur, block))
            self._product(f"{name}.mlp_norm", f"{name}.mlp_up")
            self.stream.baddbmm_(F.gelu(self._inner), self.network.layout.matrix(self.copies, f"{name}.mlp_down"))

    def _product(self, norm: str, matrix: str) -> None:
        """Compute inner = LN(stream) @ matrix."""
        self.network.norm(self.copies, self.stream, self._normed, norm)
        torch.bmm(self._normed, self.network.layout.matrix(self.copies, matrix), out=self._inner)

    def _recur(self, block: int) -> None:
        """Run the time loop: the gates' input products are in `inner`, and the outputs are added to `stream`."""
        hidden, cell = self.state[0, block], self.state[1, block]
        p, b, d = hidden.shape
        cells = self.network.tuning.cells
        recurrent = self.network.layout.matrix(self.copies, f"blocks.{block}.lstm_hidden")
        gates, stream = (x.view(p, self.steps, b, -1) for x in (self._inner, self.stream))
        for t in range(self.steps):
            gates[:, t].baddbmm_(hidden, recurrent)
            kernels.lstm_cell[(triton.cdiv(b * d, cells), p)](
                gates[:, t], hidden, cell, stream[:, t], gates.stride(0), stream.stride(0), b, D=d, BLOCK=cells
            )


class _Recorded:
    """Work on fixed buffers: launched kernel by kernel the first time, which compiles them, later as one CUDA graph."""

    def __init__(self, graphs: bool) -> None:
        self._graphs, self._warm = graphs, False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, work: Callable[[], None]) -> None:
        """Do `work`, which must be the same in every call; it is not stored, since a cycle would keep its buffers
        alive.
        """
        if not (self._graphs and self._warm):
            work()
            self._warm = True
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):  # records without running
                work()
        self._graph.replay()


@lru_cache(maxsize=8)
def source_of(spec: LSTMSpec, device: torch.device) -> Tensor:
    """Return the index table of the padded layout on a device, int32 [N]."""
    return torch.from_numpy(layout(spec).source).to(device)
