"""Common interface to the operation that dominates the compute: the losses L(theta + s eps z_j) of one batch.

Every engine draws the same directions (soma.forward.probes) and agrees with the float64 `reference` on the losses; they
differ only in speed and rounding. Losses are averaged in float64, so that differences are of float64 numbers.

Shapes: E experts, J directions, S signs, B sequences, T predicted bytes, M body parameters, V = 256 bytes, H embedding
width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.forward.head import decoder_gradient
from soma.forward.probes import Probes
from soma.models.experts import Experts


@dataclass(frozen=True)
class Problem:
    """The arguments of `Engine.losses`."""

    experts: Experts
    tokens: NDArray[np.uint8]
    probes: Probes
    eps: Sequence[float]
    signs: tuple[int, ...]

    def __post_init__(self) -> None:
        experts, probes = self.experts, self.probes
        if probes.spec != experts.spec:
            raise ValueError(f"probes are for {probes.spec}, the experts are {experts.spec}")
        if not len(experts) == len(probes.experts) == len(self.eps):
            raise ValueError(f"{len(experts)} experts, probes for {len(probes.experts)}, {len(self.eps)} values of eps")


class Engine(ABC):
    """Forward passes of experts on tokens, uint8 [E, B, T + 1]."""

    name: str
    exact: bool = False
    """True if every processor computes the same bytes."""

    def losses(
        self,
        experts: Experts,
        tokens: NDArray[np.uint8],
        probes: Probes,
        eps: Sequence[float],
        signs: tuple[int, ...] = (1, -1),
    ) -> NDArray[np.float64]:
        """Compute the mean loss in nats per byte at theta + s eps z_j for every s of `signs`; float64 [E, J, S].

        Args:
            probes: directions of the same experts.
            eps: perturbation size of each expert.
        """
        return self._losses(Problem(experts, tokens, probes, eps, signs))

    @abstractmethod
    def _losses(self, at: Problem) -> NDArray[np.float64]:
        """Compute what `losses` returns."""

    @abstractmethod
    def token_losses(self, experts: Experts, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Compute the loss of every target in nats at theta itself; float64 [E, B, T]."""

    @abstractmethod
    def hidden(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        """Compute the hidden states before the decoder at theta itself; [E, B, T, H]."""

    def head_gradient(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        """Compute the gradient of each expert's mean loss in its head by the delta rule, at theta itself; [E, V, H]."""
        hidden = self.hidden(experts, tokens)
        targets = torch.from_numpy(tokens[:, :, 1:]).to(hidden.device)
        pairs = zip(hidden.flatten(1, 2), experts.head, targets.flatten(1), strict=True)
        return torch.stack([decoder_gradient(h, own, y) for h, own, y in pairs])

    def combine(self, probes: Probes, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute sum_j c_j z_j in the order of j for c [E, J]; float64 [E, M], the same bits on every engine."""
        return probes.combine(coefficients)


def check_coefficients(probes: Probes, coefficients: NDArray[np.float64]) -> None:
    """Raise `ValueError` unless the coefficients are float64 [E, J], as the kernels read them."""
    shape = (len(probes.experts), len(probes.directions))
    if coefficients.dtype != np.float64 or coefficients.shape != shape:
        raise ValueError(f"coefficients must be float64 {shape}, not {coefficients.dtype} {coefficients.shape}")
