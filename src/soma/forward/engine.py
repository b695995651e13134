"""One interface for the operation that nearly all compute goes into: the losses L(theta + s eps z_j) of one batch.

Every engine draws the same directions (soma.probes) and agrees with the float64 `reference` on the losses; they
differ in speed and rounding only. Losses are averaged in float64, so that differences are of float64 numbers.

Shapes: E experts, J directions, S signs, B sequences, T predicted bytes, M body parameters, V = 256 bytes, H embedding
width.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.errors import SomaError
from soma.models.spec import LSTMSpec
from soma.probes import Probes

log = logging.getLogger("soma.forward")


class Engine(ABC):
    """Forward passes of experts; `theta` is [E, M], `head` [E, V, H], `tokens` uint8 [E, B, T + 1]."""

    name: str
    exact: bool = False
    """The same input gives the same bytes on every processor with fused multiply-add, and not only on one of a kind."""

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
        """Mean loss in nats per byte at theta + s eps z_j for every s of `signs`; float64 [E, J, S]."""

    @abstractmethod
    def token_losses(
        self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]
    ) -> NDArray[np.float64]:
        """Loss of every target in nats at theta itself; float64 [E, B, T]."""

    @abstractmethod
    def hidden(self, spec: LSTMSpec, theta: Tensor, head: Tensor, tokens: NDArray[np.uint8]) -> Tensor:
        """Hidden states before the decoder at theta itself; [E, B, T, H]."""

    def combine(self, probes: Probes, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """sum_j c_j z_j in the order of j for c [E, J]; float64 [E, M], the same bits on every engine."""
        return probes.combine(coefficients)


def create(name: str, device: str = "cpu") -> Engine:
    """The engine called `name`; `auto` is the best one present on the device.

    Raises:
        SomaError: if the engine or the device is not available here.
    """
    from soma.forward import cpu
    from soma.forward.reference import ReferenceEngine
    from soma.forward.torch_engine import TorchEngine

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SomaError(f"compute.device is {device}, but torch sees no CUDA device here; use cpu or a CUDA machine.")
    # cuDNN and cuBLAS may round operands to TF32 by default, which an eps of 1e-3 does not survive (DEVIATIONS.md).
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if name == "triton" or (name == "auto" and device.startswith("cuda") and find_spec("triton") is not None):
        if not device.startswith("cuda"):
            raise SomaError("compute.engine is triton, which needs a CUDA device; use auto, cpu or torch.")
        try:
            from soma.forward.triton_engine import TritonEngine
        except ImportError:
            raise SomaError(
                "compute.engine is triton, which is not installed; install a CUDA build of torch or use torch."
            ) from None
        return TritonEngine(torch.device(device))
    if name == "cpu" or (name == "auto" and device == "cpu" and cpu.available()):
        return cpu.CpuEngine()
    if name == "auto" and device == "cpu":
        log.info("the compiled CPU engine is not built for this machine; using torch, about three times slower.")
    if name in ("auto", "torch"):
        return TorchEngine(torch.device(device))
    if name == "reference":
        return ReferenceEngine()
    raise SomaError(f"compute.engine is `{name}`; use auto, cpu, triton, torch or reference.")
