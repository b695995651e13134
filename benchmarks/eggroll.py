"""Whole updates of EGGROLL on this machine, one thread: `python benchmarks/eggroll.py [--quick]`.

Compares the kernel (soma.forward.members) with two peers: the form in torch that it replaced, whose factors were drawn
in float32, and, where JAX is installed, an update as a JAX user writes it: one jitted function with the network in
`lax.scan`, its noise from `jax.random`. Candidates take turns in one process; a ratio is the median over rounds of the
ratio of their CPU times. Writes benchmarks/eggroll.json.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from math import pi
from pathlib import Path
from statistics import NormalDist, median
from time import process_time
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np
import torch
from torch import Tensor

from soma.accounting.machine import device_name
from soma.estimators.eggroll import Eggroll, read_streams
from soma.forward.members import KernelMembers, TorchMembers
from soma.forward.rank_one import GRID, Noise, _philox
from soma.models import gru
from soma.models.gru_spec import GRUSpec
from soma.numerics.rng import Stream

try:
    import jax
    from jax import numpy as jnp
except ImportError:
    jax = None

CASES = {"small": (41, 6, 256, 64, 32), "toy": (29, 2, 64, 32, 32)}
"""Width, depth, population, streams and bytes."""
TARGETS = {"torch": 4.0, "jax": 2.0}
"""Minimum of the times of a peer over the kernel's, at `small`'s settings."""


class FormerMembers(TorchMembers):
    """The torch form with its factors as they were: integers times a float become float32 in torch."""

    def factors(self, noise: Noise, pairs: range, update: int, device: torch.device) -> Tensor:
        blocks, direction = torch.arange(-(-noise.size // 4)), torch.arange(pairs.start, pairs.stop)[:, None]
        words = _philox(blocks, direction, update, noise.stream.key)
        normal = torch.empty(len(pairs), len(blocks), 4, dtype=torch.float64)
        for i in (0, 2):
            radius = torch.log((words[i] + 1) * 2.0**-32).mul_(-2).sqrt_()
            angle = words[i + 1] * (2 * pi * 2.0**-32)
            normal[..., i] = radius * torch.cos(angle)
            normal[..., i + 1] = radius * torch.sin(angle)
        return (normal.flatten(1)[:, : noise.size] * (1 / GRID)).round_() * GRID


def jax_update(rule: Eggroll) -> Callable[..., Any]:
    """Return update(theta, tokens [P, T + 1], states [P, 2, L, D], key) -> theta, states, loss."""
    spec, places, pairs = rule.spec, rule.noise.places, rule.pairs
    signs = jnp.array([rule.sigma, -rule.sigma])[:, None]

    def update(theta: Any, tokens: Any, states: Any, key: Any) -> Any:
        factors = jax.random.normal(key, (pairs, rule.noise.size))
        w = {s.name: theta[s.offset : s.offset + s.size].reshape(s.shape) for s in spec.layout}
        ab = {name: (factors[:, left], factors[:, right]) for name, (left, right) in places.items()}
        own = {n: w[n] + signs * (u * v)[:, None] for n, (u, v) in ab.items() if w[n].ndim == 1}

        def clip(x: Any) -> Any:
            return jnp.clip(x, -gru.CLIP, gru.CLIP)

        def product(name: str, x: Any) -> Any:
            a, b = ab[name]
            dots = signs * jnp.einsum("pgd,pd->pg", x, b)[..., None]
            return clip((x @ w[name].T + dots * a[:, None]) * w[name].shape[1] ** -0.5)

        def norm(name: str, x: Any) -> Any:
            return x * own[name] / jnp.maximum(jnp.abs(x).mean(-1, keepdims=True), gru.NORM_FLOOR)

        def step(carried: Any, at: Any) -> Any:
            states, total = carried
            byte, target = at
            states = jnp.where((byte == rule.separator)[:, None, None, None], 0.0, states)
            a, b = ab["embedding"]
            left = jnp.take_along_axis(a, byte[:, None], axis=1)
            x = w["embedding"][byte][:, None] + signs * (left * b)[:, None]
            after = []
            for i in range(spec.depth):
                n, h = f"blocks.{i}", states[:, :, i]
                u = norm(f"{n}.cell_norm", x)
                gate = product(f"{n}.gate_input", u) + own[f"{n}.gate_bias"] + product(f"{n}.gate_hidden", h)
                g = clip(gate) * (0.5 / gru.CLIP) + 0.5
                k = product(f"{n}.candidate_input", u) + own[f"{n}.candidate_bias"]
                h = h + g * (clip(k + product(f"{n}.candidate_hidden", g * h)) - h)
                after.append(h)
                x = x + h
                x = x + product(f"{n}.mlp_down", product(f"{n}.mlp_up", norm(f"{n}.mlp_norm", x)))
            logits = product("head", norm("norm", x))
            chosen = jnp.take_along_axis(logits, target[:, None, None], axis=2)[..., 0]
            return (jnp.stack(after, 2), total + jax.nn.logsumexp(logits, axis=2) - chosen), None

        start = (states, jnp.zeros((pairs, 2)))
        (states, losses), _ = jax.lax.scan(step, start, (tokens[:, :-1].T, tokens[:, 1:].T))
        fitness = jnp.sign(losses[:, 1] - losses[:, 0])[:, None]
        z = [((fitness * a).T @ b if w[n].ndim == 2 else (fitness * a * b).sum(0)).ravel() for n, (a, b) in ab.items()]
        total = jnp.concatenate(z)
        moves = jnp.abs(total) >= NormalDist().inv_cdf(1 - rule.alpha / 2) * pairs**0.5
        return theta + rule.step * jnp.where(moves, jnp.sign(total), 0.0), states, losses.mean()

    return jax.jit(update)


def case(width: int, depth: int, population: int, streams: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Time updates of every candidate in turn."""
    stream = Stream.named(0, "benchmark")
    kernel = Eggroll(GRUSpec(width, depth), stream, population, streams, tokens, alpha=0.3, engine=KernelMembers())
    theta = gru.initialise(kernel.spec, stream)
    text = read_streams((stream.words(1 << 16) % 96 + 32).astype(np.uint8), streams, tokens, 0)
    former, states = replace(kernel, engine=FormerMembers()), kernel.initial_states()
    candidates: dict[str, Callable[[], Any]] = {
        "kernel": lambda: kernel.advance(theta, text, states, 0),
        "torch": lambda: former.advance(theta, text, states, 0),
    }
    seen = kernel.advance(theta, text, states, 0)[2].loss
    if jax is not None:
        update = jax_update(kernel)
        rows = jnp.array(text[np.arange(kernel.pairs) * streams // kernel.pairs].astype(np.int32))
        inputs = (jnp.array(theta.numpy()), rows, jnp.array(states.numpy()), jax.random.key(0))
        candidates["jax"] = lambda: jax.block_until_ready(update(*inputs))
        loss = float(candidates["jax"]()[2]) / tokens
        assert abs(loss / seen - 1) < 0.01, f"the mean loss is {loss} in JAX, {seen} in the kernel"  # other noise
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds + 1):
        for name, run in candidates.items():
            before = process_time()
            run()
            times[name].append(process_time() - before)
    used = {name: values[1:] for name, values in times.items()}
    peers = used.keys() - {"kernel"}
    ratios = {p: median(x / y for x, y in zip(used[p], used["kernel"], strict=True)) for p in sorted(peers)}
    settings = {"width": width, "depth": depth, "population": population, "streams": streams, "tokens": tokens}
    return settings | {"seconds": {name: median(v) for name, v in used.items()}, "times_kernel": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="five rounds instead of 15")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    machine = {"device": device_name(torch.device("cpu")), "torch": torch.__version__, "soma": version("soma-repro")}
    machine |= {"jax": None if jax is None else jax.__version__, "load": os.getloadavg()[0]}
    rows = {name: case(*sizes, rounds=5 if arguments.quick else 15) for name, sizes in CASES.items()}
    for name, row in rows.items():
        print(name, {k: f"{1e3 * s:.1f} ms" for k, s in row["seconds"].items()}, row["times_kernel"])
    ratios = rows["small"]["times_kernel"]
    met = {peer: ratio >= TARGETS[peer] for peer, ratio in ratios.items()}
    arguments.output.write_text(json.dumps({"machine": machine, "meets_target": met, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
