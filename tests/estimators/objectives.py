"""Objectives with known gradients, and SPSA's estimate of one."""

import numpy as np
import torch

from soma.estimators import spsa
from soma.forward.engine import Engine
from soma.forward.probes import Probes
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

SPEC = LSTMSpec(8, 1, 8)
M = SPEC.size
G = np.random.default_rng(5).normal(size=M)


class Objective(Engine):
    """An engine whose loss is any function of theta [M] in float64, whatever the batch."""

    name = "objective"

    def __init__(self, loss):
        self.loss = loss

    def _losses(self, at):
        z = at.probes.vectors().astype(np.float64)
        out = np.empty((*z.shape[:2], len(at.signs)))
        for e, j, s in np.ndindex(*out.shape):
            out[e, j, s] = self.loss(at.experts.theta[e].double().numpy() + at.signs[s] * at.eps[e] * z[e, j])
        return out

    def token_losses(self, experts, tokens):
        return np.array([self.loss(weights) for weights in experts.theta.double().numpy()])[:, None, None]

    def hidden(self, *_):
        raise NotImplementedError


def estimate(loss, *, n_pert=4, update=0, kind="dense", eps=1e-2, accumulation=1, theta=None, sign=1, **options):
    """Estimate the gradient of one expert."""
    theta = torch.zeros(1, M) if theta is None else theta
    batches = [np.zeros((1, 1, 1), np.uint8)] * accumulation
    streams = [
        Probes(SPEC, Stream.named(0, "probe"), kind, update, (0,), range(a * n_pert, (a + 1) * n_pert))
        for a in range(accumulation)
    ]
    return spsa.estimate(Objective(loss), headless(theta), batches, streams, [sign * eps], **options)


def headless(theta, spec=SPEC):
    """Return experts with bodies [E, M] whose heads do not matter."""
    return Experts.of(spec, theta, torch.zeros(1, 256, spec.embedding))


def linear(theta):
    """Return a loss whose gradient is G everywhere."""
    return theta @ G
