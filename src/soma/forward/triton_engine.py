"""The GPU engine: Triton kernels over all perturbed copies of one expert at once, chunk by chunk in time.

Each copy is a body in a *padded layout*: matrices transposed to [in, out], the width and the embedding width rounded up
with zeros, which the network leaves zero. One index table takes coordinates there, so that the kernel that perturbs
needs no knowledge of the model.

Up to a width of 32 a block is two kernels (`lstm_layer`, `mlp_layer`). Wider, three quarters of the operations do not
depend on the recurrence and are matrix products over a whole chunk of time; the recurrence is one batched product and
one kernel per step, recorded as a CUDA graph, since at small widths launching takes longer than computing.

Shapes: E experts, P copies of one expert, J directions, S signs, M parameters of a body, N of its padded layout,
B sequences (padded), T predicted bytes, R rows of a chunk of time, D padded width, H padded embedding width, V = 256
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
import triton
from numpy.typing import NDArray
from torch import Tensor

from soma.forward import triton_kernels as kernels
from soma.forward.engine import Engine
from soma.models.spec import VOCABULARY, LSTMSpec, Slot
from soma.probes import ProbeKind, Probes, kept_bits

NARROW = 32
"""The widest expert whose blocks are single kernels: beyond it the weights of a copy do not fit beside the rest."""

_CELLS = 1024  # units per program of `lstm_cell`
_ROWS = 4  # rows per program of `norm_rows`

Precision = Literal["ieee", "tf32x3"]


@dataclass(frozen=True)
class Tuning:
    """Sizes that change speed and memory, and results by rounding at most."""

    lstm_tile: int = 16
    """Sequences per program of the LSTM kernel; B is padded to a multiple of it."""
    lstm_warps: int = 4
    lstm_registers: int | None = None
    """At most so many per thread: fewer may spill and let more programs share a multiprocessor."""
    row_tile: int = 32
    """Rows per step of the MLP and the decoder kernel."""
    row_warps: int = 4
    row_programs: int = 8
    """Programs per copy over rows."""
    narrow_floats: int = 1 << 26
    """Floats of the residual stream of one chunk of time (256 MB)."""
    wide_floats: int = 1 << 30
    """Floats of the activations of one chunk of time of a wide expert (4 GB)."""
    copy_floats: int = 3 << 29
    """Floats of the perturbed bodies alive at once (6 GB); more directions are done in turn."""
    longest: int = 256
    """Steps in one chunk of time, which are also those of a wide expert's CUDA graph."""
    coordinates: int = 1024
    """Coordinates per program of the kernels that perturb and combine."""


@dataclass(frozen=True)
class Layout:
    """Where the tensors of a body lie in its padded layout."""

    spec: LSTMSpec
    width: int
    """D"""
    embedding: int
    """H"""
    at: dict[str, int]
    """First float of every tensor."""
    shape: dict[str, tuple[int, ...]]
    """Its padded shape, matrices [in, out]; the outputs of the gates and of `mlp_up` are four parts of D."""
    source: NDArray[np.int32]
    """The coordinate of the flat vector at each place, -1 for padding; [N]."""

    @property
    def narrow(self) -> bool:
        return self.width <= NARROW

    def matrix(self, copies: Tensor, name: str) -> Tensor:
        """A tensor of every copy: view [P, in, out] of copies [P, N]."""
        size = int(np.prod(self.shape[name]))
        return copies[:, self.at[name] : self.at[name] + size].unflatten(1, self.shape[name])


@lru_cache(maxsize=8)
def layout(spec: LSTMSpec) -> Layout:
    """The padded layout of a model."""
    # Kernels need powers of two up to NARROW and for the decoder; matrix products want multiples of 16.
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
    """Flat coordinates of a tensor in its padded and transposed shape, -1 for padding."""
    index = np.arange(slot.offset, slot.offset + slot.size).reshape(slot.shape)
    projected = {"project_in": (d, h), "project_out": (h, d)}.get(slot.name)
    for axis, n in enumerate(slot.shape):
        # An axis of 4 d is four parts of d, each padded by itself; a projection has no such axis.
        count, to = (1, projected[axis]) if projected else (n // spec.width, d)
        split = np.moveaxis(index, axis, -1)
        split = split.reshape(*split.shape[:-1], count, n // count)
        split = np.pad(split, [(0, 0)] * (split.ndim - 1) + [(0, to - n // count)], constant_values=-1)
        index = np.moveaxis(split.reshape(*split.shape[:-2], count * to), -1, axis)
    return np.ascontiguousarray(index.T)


class TritonEngine(Engine):
    """Compiled kernels on a CUDA device; on a CPU only in triton's interpreter, for tests.

    The bits of an expert's losses do not depend on the experts that share the call.
    """

    name = "triton"

    def __init__(
        self,
        device: torch.device,
        *,
        precision: Precision = "ieee",
        graphs: bool = True,
        tuning: Tuning | None = None,
    ) -> None:
        """
        Args:
            precision: `tf32x3` splits each operand of the narrow kernels in two TF32 numbers and takes three products
                on tensor cores: nearly float32. Plain TF32 is not offered; an eps of 1e-3 does not survive it.
            graphs: record the recurrence of wide experts as CUDA graphs.
        """
        self.device = device
        self.precision = precision
        self.graphs = graphs and device.type == "cuda"
        self.tuning = tuning or Tuning()

    def losses(
        self,
        spec: LSTMSpec,
        theta: Tensor,
        head: Tensor,
        tokens: NDArray[np.uint8],
        probes: Probes,
        eps: list[float],
        signs: tuple[int, ...] = (1, -1),
    ) -> NDArray[np.float64]:
        if probes.spec != spec or not len(theta) == len(probes.experts) == len(eps):
            raise ValueError(f"{len(theta)} experts of {spec}, probes for {probes}, {len(eps)} values of eps")
        padded = layout(spec)
        chunk = max(1, self.tuning.copy_floats // (len(signs) * padded.source.size))
        with self._current():
            directions = len(probes.directions)
            sums = torch.empty(len(theta), directions, len(signs), dtype=torch.float64, device=self.device)
            for e in range(len(theta)):
                batch = self._batch(padded, head[e], tokens[e])
                steps = torch.from_numpy(np.multiply(eps[e], signs).astype(np.float32)).to(self.device)
                for first in range(0, directions, chunk):
                    part = probes.part(slice(e, e + 1), slice(first, first + chunk))
                    copies = self._perturbed(padded, theta[e], part, steps)
                    sums[e, first : first + chunk] = self._sums(padded, copies, batch).view(-1, len(signs))
            return sums.cpu().numpy() / (tokens.shape[1] * (tokens.shape[2] - 1))

    def token_losses(
        self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]
    ) -> NDArray[np.float64]:
        padded = layout(spec)
        out = np.empty((*tokens.shape[:2], tokens.shape[2] - 1))
        with self._current():
            for e in range(tokens.shape[0]):
                copies, batch = self._padded(padded, theta[e])[None], self._batch(padded, head[e], tokens[e])
                for stream, steps in self._forward(padded, copies, batch):
                    losses = self._cross_entropy(padded, copies, batch, stream, steps)
                    out[e, :, steps.start : steps.stop] = losses[0].T.cpu().numpy()
        return out

    def hidden(self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]) -> Tensor:
        padded = layout(spec)
        out = torch.empty(*tokens.shape[:2], tokens.shape[2] - 1, spec.embedding, device=self.device)
        with self._current():
            for e in range(tokens.shape[0]):
                copies, batch = self._padded(padded, theta[e])[None], self._batch(padded, head[e], tokens[e])
                for stream, steps in self._forward(padded, copies, batch):
                    h = self._decoder_input(padded, copies, stream).view(len(steps), batch.padded, -1)
                    out[e, :, steps.start : steps.stop] = h[:, : batch.size, : spec.embedding].transpose(0, 1)
        return out

    def packed(self, probes: Probes) -> NDArray[np.uint32]:
        """`probes.packed()`, computed by a kernel; [E, J, blocks, 4]."""
        kept = np.ascontiguousarray(kept_bits(probes.spec, probes.kind))
        with self._current():
            always = torch.from_numpy(kept.view(np.int32)).to(self.device)
            directions = self._integers(probes.directions)
            shape = (len(probes.experts), len(directions), len(kept), 4)
            out = torch.empty(shape, dtype=torch.int32, device=self.device)
            block = max(1, self.tuning.coordinates // 64)
            for e, expert in enumerate(probes.experts):
                kernels.packed_words[(triton.cdiv(len(kept), block), len(directions))](
                    out[e], always, directions, *_address(probes, expert), len(kept), BLOCK=block
                )
            return out.cpu().numpy().view(np.uint32)

    def combine(self, probes: Probes, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        shape = (len(probes.experts), len(probes.directions))
        if coefficients.dtype != np.float64 or coefficients.shape != shape:
            raise ValueError(f"coefficients must be float64 {shape}, not {coefficients.dtype} {coefficients.shape}")
        if probes.kind == "gaussian":
            return super().combine(probes, coefficients)
        update, _, low, high = _address(probes, 0)
        size, block = probes.spec.size, self.tuning.coordinates
        with self._current():
            out = torch.empty(shape[0], size, dtype=torch.float64, device=self.device)
            kernels.combine[(triton.cdiv(size, block), shape[0])](
                out,
                _always(probes.spec, probes.kind, self.device)[0],
                torch.from_numpy(np.ascontiguousarray(coefficients)).to(self.device),
                self._integers(probes.directions),
                self._integers(probes.experts),
                update,
                low,
                high,
                size,
                shape[1],
                BLOCK=block,
            )
            return out.cpu().numpy()

    def _current(self) -> AbstractContextManager[object]:
        """Makes the engine's device the one that triton launches on."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    # Copies.

    def _padded(self, padded: Layout, theta: Tensor) -> Tensor:
        """Bodies [..., M] in the padded layout, [..., N]."""
        source = _source(padded.spec, self.device)
        return torch.where(source < 0, 0.0, theta.to(self.device)[..., source.clamp(min=0)])

    def _perturbed(self, padded: Layout, theta: Tensor, probes: Probes, steps: Tensor) -> Tensor:
        """Copies [J S, N] of theta [M] for the probes of one expert and float32 steps [S]."""
        n, block = padded.source.size, self.tuning.coordinates
        centre = self._padded(padded, theta)
        if probes.kind == "gaussian":
            z = self._padded(padded, torch.from_numpy(probes.normals()[0]))
            return (centre + steps[:, None] * z[:, None]).flatten(0, 1)
        directions = self._integers(probes.directions)
        copies = torch.empty(len(directions) * len(steps), n, device=self.device)
        kernels.perturb[(triton.cdiv(n, block), len(directions), len(steps))](
            copies,
            centre,
            _source(padded.spec, self.device),
            _always(padded.spec, probes.kind, self.device)[1],
            directions,
            steps,
            *_address(probes, probes.experts[0]),
            n,
            BLOCK=block,
        )
        return copies

    def _integers(self, numbers: range | tuple[int, ...]) -> Tensor:
        """32-bit counter words as int32."""
        return torch.from_numpy(np.array(numbers, dtype=np.uint32).view(np.int32)).to(self.device)

    # The network.

    def _batch(self, padded: Layout, head: Tensor, tokens: NDArray[np.uint8]) -> _Batch:
        size, length = tokens.shape
        rows = -(-size // self.tuning.lstm_tile) * self.tuning.lstm_tile
        in_time = np.zeros((length, rows), dtype=np.uint8)
        in_time[:, :size] = tokens.T
        decoder = F.pad(head.to(self.device), (0, padded.embedding - padded.spec.embedding)).contiguous()
        return _Batch(torch.from_numpy(in_time).to(self.device), decoder, size, rows)

    def _sums(self, padded: Layout, copies: Tensor, batch: _Batch) -> Tensor:
        """Losses of every copy summed over time and sequences, float64 [P]."""
        total = torch.zeros(len(copies), dtype=torch.float64, device=self.device)
        for stream, steps in self._forward(padded, copies, batch):
            losses = self._cross_entropy(padded, copies, batch, stream, steps)
            total += losses.sum(dim=(1, 2), dtype=torch.float64)
        return total

    def _forward(self, padded: Layout, copies: Tensor, batch: _Batch) -> Iterator[tuple[Tensor, range]]:
        """The residual stream [P, R, D] after the last block, and its time steps, for successive chunks of time.

        The next chunk overwrites the stream.
        """
        end = len(batch.tokens) - 1
        p, b, d = len(copies), batch.padded, padded.width
        length = self._chunk(padded, p * b, end)
        state = torch.zeros(2, padded.spec.depth, p, b, d, device=self.device)
        narrow = torch.empty(p * length * b * d if padded.narrow else 0, device=self.device)
        wide: _Wide | None = None
        for first in range(0, end, length):
            steps = range(first, min(first + length, end))
            x = batch.head[batch.tokens[steps.start : steps.stop].long()].view(1, -1, padded.embedding)
            if padded.spec.projected:
                x = torch.bmm(x.expand(p, -1, -1), padded.matrix(copies, "project_in"))
            if padded.narrow:
                stream = narrow[: p * len(steps) * b * d].view(p, -1, d)
                self._narrow(padded, copies, x, stream, state, len(steps))
            else:
                if wide is None or wide.steps != len(steps):
                    wide = None  # its memory, before more is asked for
                    wide = _Wide(padded, copies, state, len(steps), self.graphs)
                stream = wide.stream
                stream.copy_(x[..., :d])
                wide.run()
            yield stream, steps

    def _chunk(self, padded: Layout, sequences: int, end: int) -> int:
        """Time steps of one chunk for the sequences of all copies together: a power of two, or all steps."""
        # A wide chunk holds its stream, projected and normalised inputs, gates and the MLP's outputs before the last.
        streams, budget = (1, self.tuning.narrow_floats) if padded.narrow else (11, self.tuning.wide_floats)
        longest = max(1, min(self.tuning.longest, budget // (streams * sequences * padded.width)))
        return end if end <= longest else 1 << (longest.bit_length() - 1)

    def _narrow(self, padded: Layout, copies: Tensor, x: Tensor, out: Tensor, state: Tensor, steps: int) -> None:
        """All blocks on inputs x [P or 1, R, D] into out [P, R, D]."""
        p, rows, d = out.shape
        n = copies.shape[1]
        b = rows // steps
        common = {"WIDTH": padded.spec.width, "D": d, "PRECISION": self.precision, "num_stages": 1}
        registers = {"maxnreg": self.tuning.lstm_registers} if self.tuning.lstm_registers else {}
        for block in range(padded.spec.depth):
            at = {name: padded.at[f"blocks.{block}.{name}"] for name in _BLOCK_TENSORS}
            kernels.lstm_layer[(p, b // self.tuning.lstm_tile)](
                x,
                x.stride(0) if x.shape[0] > 1 else 0,
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

    def _decoder_input(self, padded: Layout, copies: Tensor, stream: Tensor) -> Tensor:
        """What the head multiplies, [P, R, D or H], for the residual stream [P, R, D]."""
        x = torch.empty_like(stream)
        _norm(padded, copies, stream, x, "norm")
        return torch.bmm(x, padded.matrix(copies, "project_out")) if padded.spec.projected else x

    def _cross_entropy(self, padded: Layout, copies: Tensor, batch: _Batch, stream: Tensor, steps: range) -> Tensor:
        """Losses of the true sequences, float32 [P, T, B]."""
        projected = padded.spec.projected
        x = self._decoder_input(padded, copies, stream) if projected else stream
        p, rows, d = x.shape
        losses = torch.empty(p, rows, device=self.device)
        kernels.cross_entropy[self._row_grid(p, rows)](
            losses,
            x,
            copies,
            copies.shape[1],
            padded.at["norm"],
            batch.head,
            batch.tokens[steps.start + 1 : steps.stop + 1],
            rows,
            WIDTH=padded.spec.width,
            D=d,
            H=padded.embedding,
            V=VOCABULARY,
            NORM=not projected,
            TILE=self.tuning.row_tile,
            PRECISION=self.precision,
            num_warps=self.tuning.row_warps,
            num_stages=1,
        )
        return losses.view(p, len(steps), batch.padded)[:, :, : batch.size]

    def _row_grid(self, copies: int, rows: int) -> tuple[int, int]:
        return copies, min(self.tuning.row_programs, triton.cdiv(rows, self.tuning.row_tile))


_BLOCK_TENSORS = ("lstm_norm", "lstm_input", "lstm_hidden", "mlp_norm", "mlp_up", "mlp_down")


@dataclass(frozen=True)
class _Batch:
    """One expert's sequences and head on the device."""

    tokens: Tensor
    """uint8 [T + 1, B], padded with zero bytes."""
    head: Tensor
    """[V, H]"""
    size: int
    """True sequences."""
    padded: int
    """B"""


class _Wide:
    """The blocks of wide copies over a chunk of `steps`, on buffers that stay where they are, as graphs need.

    Shapes as in the module; gates are [P, R, 4D].
    """

    def __init__(self, padded: Layout, copies: Tensor, state: Tensor, steps: int, graphs: bool) -> None:
        self.padded, self.copies, self.state, self.steps = padded, copies, state, steps
        p, b, d = state.shape[2:]
        self.stream = torch.empty(p, steps * b, d, device=copies.device)
        self._normed = torch.empty_like(self.stream)
        self._inner = torch.empty(p, steps * b, 4 * d, device=copies.device)
        self._recurrences = [_Recorded(graphs) for _ in range(padded.spec.depth)]

    def run(self) -> None:
        """All blocks in place on `stream`, from the state that the chunk before left."""
        for block, recurrence in enumerate(self._recurrences):
            name = f"blocks.{block}"
            self._product(f"{name}.lstm_norm", f"{name}.lstm_input")
            recurrence(partial(self._recur, block))
            self._product(f"{name}.mlp_norm", f"{name}.mlp_up")
            self.stream.baddbmm_(F.gelu(self._inner), self.padded.matrix(self.copies, f"{name}.mlp_down"))

    def _product(self, norm: str, matrix: str) -> None:
        """inner = LN(stream) @ matrix."""
        _norm(self.padded, self.copies, self.stream, self._normed, norm)
        torch.bmm(self._normed, self.padded.matrix(self.copies, matrix), out=self._inner)

    def _recur(self, block: int) -> None:
        """The time loop: the input products of the gates lie in `inner`, and the outputs are added to `stream`."""
        hidden, cell = self.state[0, block], self.state[1, block]
        p, b, d = hidden.shape
        recurrent = self.padded.matrix(self.copies, f"blocks.{block}.lstm_hidden")
        gates, stream = (x.view(p, self.steps, b, -1) for x in (self._inner, self.stream))
        for t in range(self.steps):
            gates[:, t].baddbmm_(hidden, recurrent)
            kernels.lstm_cell[(triton.cdiv(b * d, _CELLS), p)](
                gates[:, t], hidden, cell, stream[:, t], gates.stride(0), stream.stride(0), b, D=d, BLOCK=_CELLS
            )


class _Recorded:
    """Work on fixed buffers: launched one by one the first time, which compiles kernels, later as one CUDA graph."""

    def __init__(self, graphs: bool) -> None:
        self._graphs, self._warm = graphs, False
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, work: Callable[[], None]) -> None:
        """Does `work`, the same at every call; it is not kept, since a cycle would hold its buffers."""
        if not (self._graphs and self._warm):
            work()
            self._warm = True
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):  # records without running
                work()
        self._graph.replay()


def _norm(padded: Layout, copies: Tensor, x: Tensor, out: Tensor, name: str) -> None:
    """out = LN(x) with the gain called `name`, both [P, R, D]."""
    p, rows, d = x.shape
    kernels.norm_rows[(triton.cdiv(rows, _ROWS), p)](
        out,
        x,
        copies,
        copies.shape[1],
        padded.at[name],
        rows,
        WIDTH=padded.spec.width,
        D=d,
        BLOCK=triton.next_power_of_2(d),
        TILE=_ROWS,
    )


@lru_cache(maxsize=8)
def _source(spec: LSTMSpec, device: torch.device) -> Tensor:
    """The index table of the padded layout on a device, int32 [N]."""
    return torch.from_numpy(layout(spec).source).to(device)


@lru_cache(maxsize=8)
def _always(spec: LSTMSpec, kind: ProbeKind, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which coordinates no probe zeroes, int8: [M], and in the padded layout [N]."""
    kept = spec.gains if kind == "sparse" else np.ones(spec.size, dtype=bool)
    flat = torch.from_numpy(kept.astype(np.int8)).to(device)
    return flat, flat[_source(spec, device).clamp(min=0)]


def _address(probes: Probes, expert: int) -> tuple[int, int, int, int]:
    """update, expert, low and high half of the key: 32-bit words as the int32 that have their bits."""
    words = np.array([probes.update, expert, probes.stream.key & 0xFFFFFFFF, probes.stream.key >> 32], dtype=np.uint32)
    update, expert, low, high = words.view(np.int32).tolist()
    return update, expert, low, high
