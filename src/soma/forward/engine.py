"""Common interface to the operation that dominates the compute: the losses L(theta + s eps z_j) of one batch.

Every engine draws the same directions (soma.forward.probes) and agrees with the float64 `reference` on the losses; they
differ only in speed and rounding. Losses are averaged in float64, so that differences are of float64 numbers.

Shapes: E experts, J directions, S signs, B sequences, T predicted bytes, M body parameters, V = 256 bytes, H embedding
width.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from importlib.util import find_spec
from pkgutil import resolve_name

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.errors import SomaError
from soma.forward.head import decoder_gradient
from soma.forward.probes import Probes
from soma.models.spec import LSTMSpec

log = logging.getLogger("soma.forward")


class Engine(ABC):
    """Forward passes of experts; `theta` is [E, M], `head` [E, V, H], `tokens` uint8 [E, B, T + 1]."""

    name: str
    exact: bool = False
    """True if every processor computes the same bytes."""

    @abstractmethod
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
        """Compute the mean loss in nats per byte at theta + s eps z_j for every s of `signs`; float64 [E, J, S]."""

    @abstractmethod
    def token_losses(
        self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]
    ) -> NDArray[np.float64]:
        """Compute the loss of every target in nats at theta itself; float64 [E, B, T]."""

    @abstractmethod
    def hidden(self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]) -> Tensor:
        """Compute the hidden states before the decoder at theta itself; [E, B, T, H]."""

    def head_gradient(self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]) -> Tensor:
        """Compute the gradient of each expert's mean loss in its head by the delta rule, at theta itself; [E, V, H]."""
        hidden = self.hidden(spec, theta, head, tokens)
        targets = torch.from_numpy(tokens[:, :, 1:]).to(hidden.device)
        pairs = zip(hidden.flatten(1, 2), head, targets.flatten(1), strict=True)
        return torch.stack([decoder_gradient(h, own, y) for h, own, y in pairs])

    def combine(self, probes: Probes, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute sum_j c_j z_j in the order of j for c [E, J]; float64 [E, M], the same bits on every engine."""
        return probes.combine(coefficients)


ENGINES = {
    "cpu": "soma.forward.cpu:CpuEngine",
    "triton": "soma.forward.triton_engine:TritonEngine",
    "torch": "soma.forward.torch_engine:TorchEngine",
    "reference": "soma.forward.reference:ReferenceEngine",
}
"""Class of each engine. Imported when used, so that the results of one engine do not depend on the code of others."""


def create(name: str, device: str = "cpu") -> Engine:
    """Create the engine called `name`; `auto` is the best one available on the device.

    Raises:
        SomaError: if the engine or the device is not available here.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SomaError(f"compute.device is {device}, but torch sees no CUDA device here; use cpu or a CUDA machine.")
    # cuDNN and cuBLAS may round operands to TF32 by default, which is too coarse for an eps of 1e-3 (DEVIATIONS.md).
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    name = _best(device) if name == "auto" else name
    if name not in ENGINES:
        raise SomaError(f"compute.engine is `{name}`; use auto, cpu, triton, torch or reference.")
    if name == "triton" and not device.startswith("cuda"):
        raise SomaError("compute.engine is triton, which needs a CUDA device; use auto, cpu or torch.")
    try:
        engine = resolve_name(ENGINES[name])
    except ImportError:
        if name != "triton":
            raise
        raise SomaError(
            "compute.engine is triton, which is not installed; install a CUDA build of torch or use torch."
        ) from None
    made: Engine = engine(torch.device(device)) if name in ("triton", "torch") else engine()
    return made


def _best(device: str) -> str:
    """Return the name of the fastest engine available."""
    if device.startswith("cuda"):
        return "torch" if find_spec("triton") is None else "triton"
    if device == "cpu" and resolve_name("soma.forward.cpu:available")():
        return "cpu"
    if device == "cpu":
        log.info("the compiled CPU engine is not built for this machine; using torch, about three times slower.")
    return "torch"
