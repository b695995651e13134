"""Adam as in the paper: bias-corrected moments, coupled weight decay, explicit state.

The operations are separate elementwise steps, each rounded once, so that a CPU's choice of fused instructions cannot
change a weight. Zeroth-order training with Adam has no backward pass, but it does have state: two numbers per weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from soma.numerics.exact import power


@dataclass(frozen=True)
class Adam:
    beta1: float
    beta2: float
    delta: float
    weight_decay: float

    def step(self, weights: Tensor, gradient: Tensor, m: Tensor, v: Tensor, update: int, lr: Tensor) -> None:
        """Update weights and both moments in place.

        Args:
            weights, gradient, m, v: same shape, first axis experts.
            update: number of this update, from 1.
            lr: learning rate of each expert, broadcastable against weights.
        """
        if self.weight_decay:
            gradient = gradient + self.weight_decay * weights
        m.mul_(self.beta1).add_((1 - self.beta1) * gradient)
        v.mul_(self.beta2).add_((1 - self.beta2) * (gradient * gradient))
        corrected = v / (1 - power(self.beta2, update))
        weights.sub_(lr * (m / (1 - power(self.beta1, update))) / (_root(corrected) + self.delta))


def _root(x: Tensor) -> Tensor:
    """Return the square root, correctly rounded as in IEEE 754.

    Torch's on a CPU is MKL's, whose last bit is wrong for some numbers, which differ between makers of processors.
    """
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else torch.sqrt(x)
