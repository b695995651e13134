"""Experts that exchange predictions: a learned gate over routed experts, against their plain mean (not in the paper).

The experts are frozen. Expert r in the router's order weighs exp(s_r), up to a common factor, in the next byte's
distribution:

    s_r = b_r + sum_f c_f h_fr,  h_fr(t) = sum_{u < t} d_f^(t - 1 - u) log p_r(y_u)

so a gate has a bias for each rank and a coefficient for each memory of how well the experts predicted the bytes before;
d = 1 with c = 1 would be the posterior over the experts, and a gate of zeros is the plain mean. It learns from windows
of expert validation, which trained no expert, by SPSA or by its exact gradient, from zeros and with the same rate.
Gates are compared on ensemble validation, which trains no gate and chooses none; the test set is not read.

Shapes: n windows, K routed experts, W bytes, S scored bytes, F memories, M = K + F coefficients, J directions.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from soma.data.sets import open_validation
from soma.errors import SomaError
from soma.estimators.spsa import central_differences
from soma.evaluation.ensemble import lstm_losses, mixture_losses, selected_losses
from soma.evaluation.published import Published
from soma.forward.module import ModuleSpec
from soma.forward.probes import Probes
from soma.measurements.inputs import Inputs
from soma.models.count import BPTT_FORWARDS, operations_per_token, spsa_forwards
from soma.models.spec import LSTMSpec, lay_out
from soma.numerics.rng import Stream
from soma.training.adam import Adam

Method = Literal["spsa", "exact"]
DECAYS = (0.0, 0.8, 0.95, 0.99, 1.0)
"""How much of a memory is kept at every byte."""

_ADAM = Adam(beta1=0.9, beta2=0.999, delta=1e-8, weight_decay=0.0)


def measure(at: Inputs) -> pd.DataFrame:
    """Measure one row per (run, rule, document); rules are the plain mean, the nearest expert, the posterior, gates."""
    data, p, out = open_validation(at.results / "sets/validation.parquet"), at.product, []
    for opened, k in zip(at.opened(), at.settings["active"], strict=True):
        run = opened.run
        held = at.shards(run)
        ids = np.unique(np.concatenate([held.validation(e) for e in range(held.experts)]))
        if not len(ids):
            raise SomaError("no window is held out for expert validation; raise data.expert_validation.")
        ids = ids[np.linspace(0, len(ids) - 1, min(len(ids), p["windows"])).astype(np.int64)]
        text = at.windows(run).crops(ids, np.zeros(len(ids), np.int64), run.window)
        losses, memories = _read(at, opened, text, k, data.prefix)
        tested, remembered = _read(at, opened, data.windows, k, data.prefix)
        gates = {"mean": np.zeros(k + len(DECAYS)), "posterior": np.eye(k + len(DECAYS))[-1]}
        for method in get_args(Method):
            gates[method] = learn(losses, memories, method, p["lr"], p["eps"], p["n_pert"], p["updates"], run.seed)
        forwards = {"spsa": spsa_forwards(p["n_pert"], "central"), "exact": BPTT_FORWARDS}
        scored = {rule: gated_losses(torch.from_numpy(gate), tested, remembered) for rule, gate in gates.items()}
        nats = {rule: own.numpy() for rule, own in scored.items()} | {"nearest": mixture_losses(tested[:, :1])}
        read = len(text) * run.window * k * operations_per_token(run.model)
        of_gate = losses.shape[0] * losses.shape[2] * gate_operations(k)
        for rule, own in nats.items():
            charged = float(read + p["updates"] * forwards[rule] * of_gate) if rule in forwards else 0.0
            facts = {"run": run.id, "seed": run.seed, "update": run.updates, "k": k, "rule": rule, "windows": len(text)}
            rows = pd.DataFrame({"document": data.document, "nats": own.sum(axis=1), "bytes": own.shape[1]})
            out.append(rows.groupby("document", as_index=False).sum().assign(operations=charged, **facts))
    return pd.concat(out, ignore_index=True)


def gate_operations(k: int) -> int:
    """Count the operations of a gate on one byte: memories of K experts updated, weighed and added to the mixture."""
    return 2 * k * (2 * len(DECAYS) + 1)


def _read(
    at: Inputs, opened: Published, text: NDArray[np.uint8], k: int, prefix: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the losses [n, K, S] of the routed experts on scored bytes, and the memories [n, K, S, F] before each."""
    run = opened.run
    router = at.routers.router(run)
    order = np.arange(k)[None] if router is None else router.route(text, prefix, k, run.experts)
    selected = np.broadcast_to(order, (len(text), k))
    losses = selected_losses(lstm_losses(at.engine, opened.experts()), text, selected, 0)
    return losses[:, :, prefix:], memories_of(losses)[:, :, prefix:]


def memories_of(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return h of every byte [n, K, W, F] from losses [n, K, W]; that of the first byte is zero."""
    out = np.zeros((*losses.shape, len(DECAYS)))
    for t in range(1, losses.shape[2]):
        out[:, :, t] = out[:, :, t - 1] * np.array(DECAYS) - losses[:, :, t - 1, None]
    return out


def gated_losses(gate: Tensor, losses: NDArray[np.float64], memories: NDArray[np.float64]) -> Tensor:
    """Compute the loss of every byte [n, S] under a gate [M], float64."""
    k = losses.shape[1]
    scores = torch.from_numpy(memories) @ gate[k:] + gate[:k, None]
    joint = torch.log_softmax(scores, dim=1) - torch.from_numpy(losses)
    return -torch.logsumexp(joint, dim=1)


def learn(
    losses: NDArray[np.float64],
    memories: NDArray[np.float64],
    method: Method,
    lr: float,
    eps: float,
    n_pert: int,
    updates: int,
    seed: int,
) -> NDArray[np.float64]:
    """Train a gate from zeros on all windows at once, by central differences or by its exact gradient; float64 [M].

    Args:
        losses, memories: of the training windows, [n, K, S] and [n, K, S, F].
    """
    k, size = losses.shape[1], losses.shape[1] + len(DECAYS)
    # Probes need no more of a specification than the places of its tensors.
    spec = cast(LSTMSpec, ModuleSpec(lay_out([("bias", (k,)), ("memory", (len(DECAYS),))])))
    gate, stream = torch.zeros(size, dtype=torch.float64), Stream.named(seed, "combiner", "probe")
    m, v, rate = torch.zeros_like(gate), torch.zeros_like(gate), torch.tensor(lr, dtype=torch.float64)
    for update in range(updates):
        if method == "exact":
            at = gate.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(gated_losses(at, losses, memories).mean(), at)
        else:
            probes = Probes(spec, stream, "dense", update, (0,), range(n_pert))
            z = torch.from_numpy(probes.signs()[0].astype(np.float64))
            sides = [[float(gated_losses(gate + s * eps * d, losses, memories).mean()) for s in (1, -1)] for d in z]
            slopes = central_differences(np.array([sides]), [eps])
            gradient = torch.from_numpy(probes.combine(slopes / n_pert)[0])
        _ADAM.step(gate, gradient, m, v, update + 1, rate)
    return gate.numpy()
