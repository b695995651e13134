"""A tiny ensemble on text-like bytes.

Shapes: N experts, B sequences, T predicted bytes.
"""

import numpy as np
import torch

from soma.models import lstm
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

SPEC = LSTMSpec(4, 1, 4)


def ensemble(experts, *shape, spec=SPEC, heads=1):
    """Return experts with one head or heads of their own, and bytes of shape `shape` with 16 different values.

    Gains differ from their initial 1 and all weights are larger, so that the gradient varies over the coordinates.
    """
    pairs = [lstm.initialise(spec, Stream.named(e, "init")) for e in range(max(experts, heads))]
    theta, head = (torch.stack(x) for x in zip(*pairs, strict=True))
    noise = Stream.named(0, "noise").normal(theta.numel()).reshape(theta.shape).astype(np.float32)
    bytes_ = 97 + Stream.named(0, "bytes").integers(int(np.prod(shape)), 16).reshape(shape)
    theta = theta[:experts] + 0.1 * torch.from_numpy(noise)[:experts]
    return Experts.of(spec, theta, 3 * head[:heads]), bytes_.astype(np.uint8)


def assert_near(value, error, expected, what):
    """Assert that a mean is within four standard errors, and that these are small."""
    assert abs(value - expected) < 4 * error, f"{what}: {value:.4g} against {expected:.4g} ± {error:.2g}"
    assert error < 0.06 * expected, f"{what}: too few draws to tell, {expected:.4g} ± {error:.2g}"
