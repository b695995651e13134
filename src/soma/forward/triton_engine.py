"""The GPU engine: all perturbed copies of one expert at once, through the kernels of `triton_network`.

Shapes: E experts, P copies of one expert, J directions, S signs, M parameters of a body, N of its padded layout,
B sequences (padded), T predicted bytes, H padded embedding width.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from soma.forward import triton_kernels as kernels
from soma.forward.engine import Engine, Problem, check_coefficients
from soma.forward.probes import ProbeKind, Probes, kept_bits
from soma.forward.triton_network import Network, Precision, Tuning, current, layout, source_of
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec


class TritonEngine(Engine):
    """Compiled kernels on a CUDA device; on a CPU only in triton's interpreter, for tests.

    The bits of an expert's losses do not depend on the other experts in the call.
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
        """Create the engine on a device.

        Args:
            precision: `tf32x3` splits each operand of the narrow kernels into two TF32 numbers and takes three products
                on tensor cores: nearly float32. Plain TF32 is not offered, as it is too coarse for an eps of 1e-3.
            graphs: record the recurrence of wide experts as CUDA graphs.
        """
        self.device = device
        self.precision = precision
        self.graphs = graphs
        self.tuning = tuning or Tuning()

    def _losses(self, at: Problem) -> NDArray[np.float64]:
        experts, tokens, signs = at.experts, at.tokens, at.signs
        network = self._network(experts.spec)
        size = tokens.shape[1]
        chunk = max(1, self.tuning.copy_floats // (len(signs) * network.layout.source.size))
        with current(self.device):
            directions = len(at.probes.directions)
            sums = torch.zeros(len(experts), directions, len(signs), dtype=torch.float64, device=self.device)
            for e, expert in enumerate(experts):
                shared = self._shared(network, expert, tokens[e])
                steps = torch.from_numpy(np.multiply(at.eps[e], signs).astype(np.float32)).to(self.device)
                for first in range(0, directions, chunk):
                    part = at.probes.part(slice(e, e + 1), slice(first, first + chunk))
                    copies = self._perturbed(network, expert.theta[0], part, steps)
                    for _, losses in network.losses(copies, *shared):
                        some = losses[..., :size].sum(dim=(1, 2), dtype=torch.float64)
                        sums[e, first : first + chunk] += some.view(-1, len(signs))
            return sums.cpu().numpy() / (size * (tokens.shape[2] - 1))

    def token_losses(self, experts: Experts, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        network = self._network(experts.spec)
        size = tokens.shape[1]
        out = np.empty((*tokens.shape[:2], tokens.shape[2] - 1))
        with current(self.device):
            for e, expert in enumerate(experts):
                copies = network.pad_bodies(expert.theta)
                for steps, losses in network.losses(copies, *self._shared(network, expert, tokens[e])):
                    out[e, :, steps.start : steps.stop] = losses[0, :, :size].T.cpu().numpy()
        return out

    def hidden(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        spec = experts.spec
        network = self._network(spec)
        size = tokens.shape[1]
        out = torch.empty(*tokens.shape[:2], tokens.shape[2] - 1, spec.embedding, device=self.device)
        with current(self.device):
            for e, expert in enumerate(experts):
                copies = network.pad_bodies(expert.theta)
                head, read = self._shared(network, expert, tokens[e])
                for steps, stream in network.forward(copies, head, read[:, :-1]):
                    h = network.hidden(copies, stream).view(len(steps), read.shape[2], -1)
                    out[e, :, steps.start : steps.stop] = h[:, :size, : spec.embedding].transpose(0, 1)
        return out

    def packed(self, probes: Probes) -> NDArray[np.uint32]:
        """Compute `probes.packed()` in a kernel; [E, J, blocks, 4]."""
        kept = kept_bits(probes.spec, probes.kind)
        with current(self.device):
            always = torch.tensor(kept.view(np.int32), device=self.device)
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
        check_coefficients(probes, coefficients)
        if probes.kind == "gaussian":
            return super().combine(probes, coefficients)
        update, _, low, high = _address(probes, 0)
        size, block = probes.spec.size, self.tuning.coordinates
        with current(self.device):
            out = torch.empty(len(probes.experts), size, dtype=torch.float64, device=self.device)
            kernels.combine[(triton.cdiv(size, block), len(out))](
                out,
                _always(probes.spec, probes.kind, self.device)[0],
                torch.from_numpy(np.ascontiguousarray(coefficients)).to(self.device),
                self._integers(probes.directions),
                self._integers(probes.experts),
                update,
                low,
                high,
                size,
                len(probes.directions),
                BLOCK=block,
            )
            return out.cpu().numpy()

    def _network(self, spec: LSTMSpec) -> Network:
        return Network(layout(spec), self.device, self.precision, self.graphs, self.tuning)

    def _shared(self, network: Network, expert: Experts, tokens: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
        """Pad one expert's head [1, V, H] and bytes [1, T + 1, B], which all its copies share."""
        return network.pad_heads(expert.head), network.pad_tokens(torch.tensor(tokens[None]))

    def _perturbed(self, network: Network, theta: Tensor, probes: Probes, steps: Tensor) -> Tensor:
        """Compute copies [J S, N] of theta [M] for the probes of one expert and float32 steps [S]."""
        n, block = network.layout.source.size, self.tuning.coordinates
        centre = network.pad_bodies(theta)
        if probes.kind == "gaussian":
            z = network.pad_bodies(torch.from_numpy(probes.normals()[0]))
            return (centre + steps[:, None] * z[:, None]).flatten(0, 1)
        directions = self._integers(probes.directions)
        copies = torch.empty(len(directions) * len(steps), n, device=self.device)
        kernels.perturb[(triton.cdiv(n, block), len(directions), len(steps))](
            copies,
            centre,
            source_of(probes.spec, self.device),
            _always(probes.spec, probes.kind, self.device)[1],
            directions,
            steps,
            *_address(probes, probes.experts[0]),
            n,
            BLOCK=block,
        )
        return copies

    def _integers(self, numbers: range | tuple[int, ...]) -> Tensor:
        """Convert 32-bit counter words to int32."""
        return torch.from_numpy(np.array(numbers, dtype=np.uint32).view(np.int32)).to(self.device)


@lru_cache(maxsize=8)
def _always(spec: LSTMSpec, kind: ProbeKind, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the coordinates that no probe zeroes, int8: [M], and in the padded layout [N]."""
    kept = spec.gains if kind == "sparse" else np.ones(spec.size, dtype=bool)
    flat = torch.from_numpy(kept.astype(np.int8)).to(device)
    return flat, flat[source_of(spec, device).clamp(min=0)]


def _address(probes: Probes, expert: int) -> tuple[int, int, int, int]:
    """Return update, expert, low and high half of the key: 32-bit words as the int32 with the same bits."""
    words = np.array([probes.update, expert, probes.stream.key & 0xFFFFFFFF, probes.stream.key >> 32], dtype=np.uint32)
    update, expert, low, high = words.view(np.int32).tolist()
    return update, expert, low, high
