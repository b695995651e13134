"""Benchmark against other implementations of the same model: `python benchmarks/peers.py` writes benchmarks/peers.json.

Two methods: the losses of perturbed copies (an SPSA estimate), and a gradient by backpropagation. The peers are JAX
(with the whole network in one `lax.scan`, its best form, and with a scan for each LSTM), `torch.func.vmap`,
`torch.nn.LSTM` fed the whole batch and eight sequences at a time, and the package's own portable code. Before a peer
is timed, its losses must agree with ours to 1e-4 nats, and its gradients to 1e-4 of the largest entry.

Every ratio is the median over interleaved rounds in one process on one core, in processor time of all its threads.
JAX is optional: `pip install --group peers` (pip 25.1 or newer); without it, its rows are left out.
`--page` writes the table into docs/engines.md, `--quick` times two small cases of each method, and `--only gradients`
(or `losses`) measures one method again and keeps the recorded rows of the other, if machine and software are the same.

Shapes: J directions, E experts, B sequences, T predicted bytes, D width, H embedding width, V bytes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from engine import EPS, NaiveLoop, Problem, machine, ratio, rounds
from numpy.typing import NDArray
from torch import Tensor

from soma.estimators import bptt
from soma.forward.cpu import CpuEngine
from soma.forward.torch_engine import TorchEngine
from soma.models import lstm
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

TOLERANCE = 1e-4
Work = Callable[[], Any]

LOSSES = ((16, 16, 128, 16), (32, 32, 256, 4), (64, 32, 128, 2), (181, 32, 128, 1), (361, 32, 128, 1), (509, 32, 64, 1))
"""Width, B, T, J of the perturbed losses."""
GRADIENTS = ((16, 1, 16, 128), (16, 8, 16, 128), (43, 2, 16, 128), (63, 1, 16, 128), (181, 1, 16, 128))
"""Width, E, B, T of the gradients: those of `small`, and a wide one."""
TARGETS = {(16, 1): 2.5, (16, 8): 1.9}
"""Minimum ratio of autograd through the model to ours, by width and number of experts."""

NAMES = {
    "torch_engine": "our `torch` engine",
    "autograd": "autograd through our model",
    "nn_lstm": "`nn.LSTM`",
    "nn_lstm_8_rows": "`nn.LSTM`, 8 rows at a time",
    "torch_vmap": "`torch.func.vmap`",
    "jax": "JAX, one scan",
    "jax_map": "JAX, one scan, copies in turn",
    "jax_layers": "JAX, a scan for each LSTM",
}
"""Names of the peers in the table."""


class Jax:
    """The network in JAX, for one expert: weights by name, head [V, H], tokens [B, T + 1]."""

    def __init__(self, spec: LSTMSpec) -> None:
        import jax

        self.jax, self.spec = jax, spec

    def unpack(self, theta: Any) -> dict[str, Any]:
        return {s.name: theta[s.offset : s.offset + s.size].reshape(s.shape) for s in self.spec.layout}

    def norm(self, x: Any, gain: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * self.jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + lstm.LAYER_NORM_EPS) * gain

    def cell(self, gates: Any, c: Any) -> tuple[Any, Any]:
        jax = self.jax
        i, f, g, o = jax.numpy.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jax.numpy.tanh(g)
        return jax.nn.sigmoid(o) * jax.numpy.tanh(c), c

    def mlp(self, w: dict[str, Any], i: int, x: Any) -> Any:
        up = self.norm(x, w[f"blocks.{i}.mlp_norm"]) @ w[f"blocks.{i}.mlp_up"].T
        return x + self.jax.nn.gelu(up, approximate=False) @ w[f"blocks.{i}.mlp_down"].T

    def nats(self, w: dict[str, Any], head: Any, x: Any, targets: Any) -> Any:
        x = self.norm(x, w["norm"])
        if self.spec.projected:
            x = x @ w["project_out"].T
        logits = x @ head.T
        target = self.jax.numpy.take_along_axis(logits, targets[..., None], -1)[..., 0]
        return self.jax.nn.logsumexp(logits, axis=-1) - target

    def embed(self, w: dict[str, Any], head: Any, tokens: Any) -> Any:
        x = head[tokens]
        return x @ w["project_in"].T if self.spec.projected else x

    def one_scan(self, theta: Any, head: Any, tokens: Any) -> Any:
        """Compute the mean loss with the whole network inside one scan over time."""
        jnp, w = self.jax.numpy, self.unpack(theta)
        zero = jnp.zeros((len(tokens), self.spec.width), theta.dtype)

        def step(state: Any, pair: Any) -> tuple[Any, Any]:
            x, after = self.embed(w, head, pair[0]), []
            for i, (h, c) in enumerate(state):
                n = self.norm(x, w[f"blocks.{i}.lstm_norm"])
                h, c = self.cell(n @ w[f"blocks.{i}.lstm_input"].T + h @ w[f"blocks.{i}.lstm_hidden"].T, c)
                after.append((h, c))
                x = self.mlp(w, i, x + h)
            return after, self.nats(w, head, x, pair[1]).sum()

        start = [(zero, zero)] * self.spec.depth
        _, sums = self.jax.lax.scan(step, start, (tokens[:, :-1].T, tokens[:, 1:].T))
        return sums.sum() / tokens[:, 1:].size

    def layer_scans(self, theta: Any, head: Any, tokens: Any) -> Any:
        """Compute the mean loss with one scan over time for each LSTM and nothing else in it."""
        jnp, w = self.jax.numpy, self.unpack(theta)
        zero = jnp.zeros((len(tokens), self.spec.width), theta.dtype)
        x = self.embed(w, head, tokens[:, :-1].T)
        for i in range(self.spec.depth):
            recurrent = w[f"blocks.{i}.lstm_hidden"].T

            def step(state: Any, gates: Any, recurrent: Any = recurrent) -> tuple[Any, Any]:
                h, c = self.cell(gates + state[0] @ recurrent, state[1])
                return (h, c), h

            gates = self.norm(x, w[f"blocks.{i}.lstm_norm"]) @ w[f"blocks.{i}.lstm_input"].T
            x = self.mlp(w, i, x + self.jax.lax.scan(step, (zero, zero), gates)[1])
        return self.nats(w, head, x, tokens[:, 1:].T).mean()

    def losses(self, copies: NDArray[np.float32], head: NDArray[np.float32], tokens: NDArray[np.uint8]) -> list[Work]:
        """Return work that computes losses of copies [P, M]: by one scan (vmap and map) and by a scan for each LSTM."""
        jax, ids, tied = self.jax, self.jax.numpy.asarray(tokens, "int32"), self.jax.numpy.asarray(head)
        one, layers = (lambda theta, f=f: f(theta, tied, ids) for f in (self.one_scan, self.layer_scans))
        compiled = [
            jax.jit(jax.vmap(one)),
            jax.jit(lambda thetas: jax.lax.map(one, thetas)),
            jax.jit(jax.vmap(layers)),
        ]
        return [lambda f=f: np.asarray(f(copies)) for f in compiled]

    def gradients(self, experts: Experts, tokens: NDArray[np.uint8]) -> list[Work]:
        """Return work that computes losses and gradients of experts, in the same three ways."""
        jax = self.jax
        arguments = (experts.theta.numpy(), experts.head.numpy(), tokens.astype(np.int32))
        one, layers = (jax.value_and_grad(f, argnums=(0, 1)) for f in (self.one_scan, self.layer_scans))
        compiled = [
            jax.jit(jax.vmap(one)),
            jax.jit(lambda *stacked: jax.lax.map(lambda own: one(*own), stacked)),
            jax.jit(jax.vmap(layers)),
        ]

        def run(f: Any) -> Any:
            losses, (body, head) = jax.block_until_ready(f(*arguments))
            return np.asarray(body), np.asarray(head), np.asarray(losses)

        return [lambda f=f: run(f) for f in compiled]


JAX_FORMS = ("jax", "jax_map", "jax_layers")


def forward(w: dict[str, Tensor], head: Tensor, tokens: Tensor, layer: Callable[..., Tensor]) -> Tensor:
    """Compute the nats [B, T] of one expert; `layer` runs an LSTM over [B, T, D]."""
    d = (w["norm"].shape[0],)
    x = F.embedding(tokens[:, :-1], head)
    if "project_in" in w:
        x = F.linear(x, w["project_in"])
    i = 0
    while f"blocks.{i}.lstm_norm" in w:
        block = {name.removeprefix(f"blocks.{i}."): value for name, value in w.items()}
        x = x + layer(F.layer_norm(x, d, block["lstm_norm"]), block["lstm_input"], block["lstm_hidden"])
        up = F.gelu(F.linear(F.layer_norm(x, d, block["mlp_norm"]), block["mlp_up"]))
        x = x + F.linear(up, block["mlp_down"])
        i += 1
    x = F.layer_norm(x, d, w["norm"])
    if "project_out" in w:
        x = F.linear(x, w["project_out"])
    logits = F.linear(x, head)
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(logits.shape[:2])


def nn_lstm(x: Tensor, from_input: Tensor, from_hidden: Tensor) -> Tensor:
    module = torch.nn.LSTM(x.shape[-1], x.shape[-1], bias=False, batch_first=True, device="meta")
    weights = {"weight_ih_l0": from_input, "weight_hh_l0": from_hidden}
    return torch.func.functional_call(module, weights, (x,))[0]  # type: ignore[no-any-return]


def cells(x: Tensor, from_input: Tensor, from_hidden: Tensor) -> Tensor:
    """Run an LSTM step by step, which `vmap` can batch."""
    gates_input = F.linear(x, from_input)
    h = c = torch.zeros_like(x[:, 0])
    out = []
    for t in range(x.shape[1]):
        i, f, g, o = (gates_input[:, t] + F.linear(h, from_hidden)).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        out.append(h)
    return torch.stack(out, dim=1)


def named(spec: LSTMSpec, theta: Tensor) -> dict[str, Tensor]:
    return {s.name: theta[s.offset : s.offset + s.size].view(s.shape) for s in spec.layout}


def loss_peers(problem: Problem) -> dict[str, Work]:
    """Return work that computes the losses [J, 2] of a problem's perturbed copies, by peer."""
    expert, spec = problem.expert, problem.spec
    signs = torch.from_numpy(problem.probes.signs()[0]).float()
    copies = torch.cat([expert.theta + step * signs for step in (EPS, -EPS)])
    naive, tokens = NaiveLoop(spec), torch.from_numpy(problem.tokens[0]).long()
    engine = TorchEngine(torch.device("cpu"))

    def of_copies(losses: Any) -> NDArray[np.float64]:
        return np.asarray(losses, np.float64).reshape(2, -1).T

    @torch.no_grad()
    def vmap() -> NDArray[np.float64]:
        losses = torch.func.vmap(lambda theta: forward(named(spec, theta), expert.head[0], tokens, cells))(copies)
        return of_copies(losses.double().mean(dim=(1, 2)))

    peers: dict[str, Work] = {
        "torch_engine": lambda: engine.losses(expert, problem.tokens, problem.probes, [EPS])[0],
        "nn_lstm": lambda: naive.losses(problem, len(tokens))[0],
        "nn_lstm_8_rows": lambda: naive.losses(problem, 8)[0],
        "torch_vmap": vmap,
    }
    if find_spec("jax"):
        forms = Jax(spec).losses(copies.numpy(), expert.head[0].numpy(), problem.tokens[0])
        peers |= {name: lambda f=f: of_copies(f()) for name, f in zip(JAX_FORMS, forms, strict=True)}
    return peers


def gradient_peers(experts: Experts, tokens: NDArray[np.uint8]) -> dict[str, Work]:
    """Return work that computes body gradients [E, M], head gradients [E, V, H] and losses [E], by peer."""
    ids = torch.from_numpy(tokens).long()

    def differentiated(losses_of: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        theta, head = (w.detach().clone().requires_grad_() for w in (experts.theta, experts.head))
        losses = losses_of(theta, head)
        losses.sum().backward()
        assert theta.grad is not None
        assert head.grad is not None
        return theta.grad, head.grad, losses.detach()

    def model(theta: Tensor, head: Tensor) -> Tensor:
        hidden, _ = lstm.hidden(Experts(experts.spec, theta, head), ids[:, :, :-1])
        return lstm.cross_entropy(hidden, head, ids[:, :, 1:]).double().mean(dim=(1, 2))

    def modules(theta: Tensor, head: Tensor) -> Tensor:
        own = zip(theta.unbind(), head.unbind(), ids, strict=True)
        return torch.stack([forward(named(experts.spec, t), h, i, nn_lstm).double().mean() for t, h, i in own])

    peers: dict[str, Work] = {"autograd": lambda: differentiated(model), "nn_lstm": lambda: differentiated(modules)}
    if find_spec("jax"):
        forms = dict(zip(JAX_FORMS, Jax(experts.spec).gradients(experts, tokens), strict=True))
        if len(experts) == 1:
            del forms["jax_map"]
        peers |= forms
    return peers


def compare(ours: Work, peers: dict[str, Work], repeats: int) -> dict[str, Any]:
    """Check that the peers agree with ours, then time all in turn."""
    expected = ours()
    parts = expected if isinstance(expected, tuple) else (expected,)
    errors = {}
    for name, work in peers.items():
        found = work()
        found = found if isinstance(found, tuple) else (found,)
        pairs = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(found, parts, strict=True)]
        # The last part is losses in nats, the others are gradients.
        scales = [*(np.abs(b).max() for _, b in pairs[:-1]), 1.0]
        errors[name] = max(float(np.abs(a - b).max() / scale) for (a, b), scale in zip(pairs, scales, strict=True))
    wrong = {name: error for name, error in errors.items() if not error <= TOLERANCE}
    if wrong:
        raise SystemExit(f"these peers do not compute the same: {wrong}")
    times = rounds({"ours": ours} | peers, repeats, process_time)
    ratios = {name: ratio(times[name], times["ours"]) for name in peers}
    return {
        "seconds": {name: [min(t), median(t), max(t)] for name, t in times.items()},
        "times_ours": ratios,
        "largest_difference": errors,
        "best_peer": min((name for name in peers if name not in ("torch_engine", "autograd")), key=ratios.__getitem__),
    }


def losses_row(engine: CpuEngine, case: tuple[int, int, int, int], repeats: int) -> dict[str, Any]:
    width, batch, length, directions = case
    problem = Problem(*case)
    row = compare(lambda: problem.kernel(engine)[0], loss_peers(problem), repeats)
    return {"width": width, "batch": batch, "length": length, "directions": directions} | row


def gradients_row(case: tuple[int, int, int, int], repeats: int) -> dict[str, Any]:
    width, count, batch, length = case
    spec = LSTMSpec(width)
    bodies, heads = zip(*(lstm.initialise(spec, Stream.named(e, "benchmark")) for e in range(count)), strict=True)
    experts = Experts(spec, torch.stack(bodies), torch.stack(heads))
    tokens = np.concatenate([np.roll(Problem(width, batch, length, 1).tokens, e, axis=1) for e in range(count)])
    row = compare(lambda: bptt.gradient(experts, [tokens], "full"), gradient_peers(experts, tokens), repeats)
    checks = [row["times_ours"]["autograd"] >= TARGETS.get((width, count), 0)]
    checks += [row["times_ours"][name] >= 0.9 for name in JAX_FORMS if name in row["times_ours"]]
    sizes = {"width": width, "experts": count, "batch": batch, "length": length}
    return sizes | row | {"meets_targets": all(checks)}


def table(result: dict[str, Any]) -> str:
    """Return the table of docs/engines.md: ours beside the best peer, method by method."""
    lines = [
        "| what | width | sizes | ours | best peer | its time over ours |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for method, rows in (("perturbed losses", result["losses"]), ("backpropagation", result["gradients"])):
        for row in rows:
            best = row["best_peer"]
            count = f"{row['directions']} directions" if "directions" in row else f"{row['experts']} experts"
            count = count[:-1] if count.startswith("1 ") else count
            lines.append(
                f"| {method} | {row['width']} | {count}, {row['batch']} × {row['length']} bytes | "
                f"{1e3 * row['seconds']['ours'][1]:.3g} ms | {NAMES[best]} | {row['times_ours'][best]:.2f} |"
            )
    return "\n".join(lines)


def write_page(result: dict[str, Any], page: Path) -> None:
    """Replace the table in docs/engines.md."""
    before, rest = page.read_text().split("<!-- peers: begin -->")
    _, after = rest.split("<!-- peers: end -->")
    page.write_text(f"{before}<!-- peers: begin -->\n\n{table(result)}\n\n<!-- peers: end -->{after}")


def kept(new: dict[str, Any], recorded: dict[str, Any], method: str) -> list[Any]:
    """Return the recorded rows of a method; refuse those of another machine, other software or other rounds."""
    settings = [(r["machine"] | {"load_average": None}, r["rounds"]) for r in (new, recorded)]
    if settings[0] != settings[1]:
        raise SystemExit(
            f"the rows of {method} were recorded with {settings[1]}, not {settings[0]}; measure both methods."
        )
    rows: list[Any] = recorded[method]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds instead of nine, two cases of each method")
    parser.add_argument(
        "--page", action="store_true", help="only write the table of the recorded JSON into docs/engines.md"
    )
    parser.add_argument("--only", choices=("gradients", "losses"), help="measure one method, keep the other's rows")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    if arguments.page:
        write_page(json.loads(arguments.output.read_text()), Path(__file__).parent.parent / "docs/engines.md")
        return
    # One core for all threads, JAX's too; both before it starts.
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    torch.set_num_threads(1)
    engine, repeats = CpuEngine(), 3 if arguments.quick else 9
    versions = {"jax": version("jax") if find_spec("jax") else None}
    result: dict[str, Any] = {"machine": machine(engine) | versions, "rounds": repeats, "losses": [], "gradients": []}
    methods = (arguments.only,) if arguments.only else ("gradients", "losses")
    if arguments.only:
        (other,) = {"gradients", "losses"} - {arguments.only}
        result[other] = kept(result, json.loads(arguments.output.read_text()), other)

    def report(method: str, row: dict[str, Any], case: tuple[int, ...]) -> None:
        result[method].append(row)
        ratios = ", ".join(f"{name} {value:.2f}" for name, value in row["times_ours"].items())
        print(f"{method} {case}: {ratios}{'' if row.get('meets_targets', True) else '   below target'}", flush=True)
        arguments.output.write_text(json.dumps(result, indent=1) + "\n")

    if "gradients" in methods:
        for case in GRADIENTS[:2] if arguments.quick else GRADIENTS:
            report("gradients", gradients_row(case, repeats), case)
    if "losses" in methods:
        for case in LOSSES[:2] if arguments.quick else LOSSES:
            report("losses", losses_row(engine, case, repeats), case)
    print(table(result))


if __name__ == "__main__":
    main()
