"""Benchmark of the CPU engine on this machine: `python benchmarks/engine.py [--quick]` writes benchmarks/engine.json.

Every comparison is the median ratio over several rounds in one process, with the two sides taking turns, because clocks
and other processes change absolute times by tens of percent. One-thread times are CPU times of the thread. Rates count
the nominal operations of the model (soma.models.count); the kernel needs fewer, since it tabulates the first layer's
input.

Shapes: J directions, B sequences, T predicted bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from soma.accounting.machine import device_name
from soma.config.training import Training
from soma.data.windows import Rows
from soma.forward.cpu import CpuEngine
from soma.forward.engine import Engine
from soma.forward.probes import Probes
from soma.models.count import operations_per_token
from soma.models.experts import Experts
from soma.models.lstm import initialise, tensors
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream
from soma.runs import RunSpec
from soma.training.learner import Group, Shard
from soma.training.loop import Trainer
from soma.training.methods.spsa import SPSALearner

EPS = 1e-3

Case = tuple[int, int, int, int, float, float | None]
"""Width, B, T, J, minimum ratio to the naive loop, minimum ratio to the same loop with 8 sequences at a time."""

CASES: list[Case] = [
    (32, 32, 256, 2, 2.2, None),
    (32, 64, 1024, 1, 4.0, 2.5),
    (16, 16, 256, 4, 2.5, None),
    (64, 32, 256, 1, 1.8, None),
    (181, 64, 32, 1, 1.3, None),
    (361, 32, 64, 1, 1.5, None),
    (509, 64, 32, 1, 1.5, None),
]


class Problem:
    """One expert, one batch of text-like bytes, J directions."""

    def __init__(self, width: int, batch: int, length: int, directions: int) -> None:
        self.spec = LSTMSpec(width)
        theta, head = initialise(self.spec, Stream.named(0, "benchmark"))
        self.expert = Experts(self.spec, theta[None], head[None])
        rng = np.random.default_rng(0)
        successors = rng.integers(32, 127, size=(256, 4))
        self.tokens = np.zeros((1, batch, length + 1), dtype=np.uint8)
        self.tokens[0, :, 0] = rng.integers(32, 127, size=batch)
        for t in range(length):
            self.tokens[0, :, t + 1] = successors[self.tokens[0, :, t], rng.integers(0, 4, size=batch)]
        self.probes = Probes(self.spec, Stream.named(0, "probe"), "sparse", 0, (0,), range(directions))
        self.operations = 2.0 * directions * batch * length * operations_per_token(self.spec)

    def kernel(self, engine: CpuEngine) -> NDArray[np.float64]:
        return engine.losses(self.expert, self.tokens, self.probes, [EPS])


class NaiveLoop:
    """The straightforward implementation: modules of torch.nn, one perturbed copy after the other."""

    def __init__(self, spec: LSTMSpec) -> None:
        self.spec = spec
        self.lstms = [nn.LSTM(spec.width, spec.width, bias=False, batch_first=True) for _ in range(spec.depth)]

    @torch.no_grad()
    def losses(self, problem: Problem, rows: int) -> NDArray[np.float64]:
        """Compute losses [1, J, 2], with `rows` sequences of the batch at a time."""
        signs = torch.from_numpy(problem.probes.signs()[0]).float()
        tokens = torch.from_numpy(problem.tokens[0]).long()
        out = np.empty((1, len(signs), 2))
        for j, z in enumerate(signs):
            for s, step in enumerate((EPS, -EPS)):
                w = {k: v[0] for k, v in tensors(self.spec, problem.expert.theta + step * z).items()}
                for i, lstm in enumerate(self.lstms):
                    lstm.get_parameter("weight_ih_l0").copy_(w[f"blocks.{i}.lstm_input"])
                    lstm.get_parameter("weight_hh_l0").copy_(w[f"blocks.{i}.lstm_hidden"])
                parts = [self._nats(w, problem.expert.head[0], part) for part in tokens.split(rows)]
                out[0, j, s] = sum(parts) / tokens[:, 1:].numel()
        return out

    def _nats(self, w: dict[str, Tensor], head: Tensor, tokens: Tensor) -> float:
        d = (self.spec.width,)
        x = F.embedding(tokens[:, :-1], head)
        if self.spec.projected:
            x = F.linear(x, w["project_in"])
        for i, lstm in enumerate(self.lstms):
            x = x + lstm(F.layer_norm(x, d, w[f"blocks.{i}.lstm_norm"]))[0]
            up = F.gelu(F.linear(F.layer_norm(x, d, w[f"blocks.{i}.mlp_norm"]), w[f"blocks.{i}.mlp_up"]))
            x = x + F.linear(up, w[f"blocks.{i}.mlp_down"])
        x = F.layer_norm(x, d, w["norm"])
        if self.spec.projected:
            x = F.linear(x, w["project_out"])
        logits = F.linear(x, head).flatten(0, 1)
        return F.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="none").double().sum().item()


def timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start


def rounds(
    candidates: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, list[float]]:
    """Time the candidates in turn, in seconds, after one round that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats + 1):
        for name, work in candidates.items():
            times[name].append(timed(work, clock))
    return {name: values[1:] for name, values in times.items()}


def ratio(slow: list[float], fast: list[float]) -> float:
    return median(a / b for a, b in zip(slow, fast, strict=True))


def against_naive(engine: CpuEngine, case: Case, repeats: int) -> dict[str, Any]:
    """Return a row: rates on one thread, share of the multiply-add peak and of torch.mm, ratios to the naive loops."""
    width, batch, length, directions, least, least_chunked = case
    problem, peak_rounds = Problem(width, batch, length, directions), 4_000_000
    naive, square = NaiveLoop(problem.spec), torch.ones(2048, 2048)
    operations = engine.peak(1) * peak_rounds
    times = rounds(
        {
            "peak": lambda: engine.peak(peak_rounds),
            "kernel": lambda: problem.kernel(engine),
            "mm": lambda: square @ square,
            "naive": lambda: naive.losses(problem, batch),
            "naive_8_rows": lambda: naive.losses(problem, 8),
        },
        repeats,
    )
    kernel, scale = times["kernel"], problem.operations
    row: dict[str, Any] = {
        "width": width,
        "batch": batch,
        "length": length,
        "directions": directions,
        "seconds": {name: [min(t), median(t), max(t)] for name, t in times.items()},
        "gflops": scale / median(kernel) / 1e9,
        "share_of_peak": ratio([t * scale / operations for t in times["peak"]], kernel),
        "share_of_torch_mm": ratio([t * scale / (2 * 2048**3) for t in times["mm"]], kernel),
        "times_naive": ratio(times["naive"], kernel),
        "times_naive_8_rows": ratio(times["naive_8_rows"], kernel),
    }
    checks = [row["times_naive"] >= least]
    if least_chunked is not None:
        checks.append(row["times_naive_8_rows"] >= least_chunked)
    if width >= 32 and batch >= 32:
        checks.append(row["share_of_torch_mm"] >= 0.55)
    if width > 181:
        checks.append(row["share_of_peak"] >= 0.7)
    row["meets_targets"] = all(checks)
    return row


def threads(engine: CpuEngine, repeats: int) -> dict[str, Any]:
    """Measure the gain of two threads at the paper's size, with two directions.

    The gain is in wall-clock time, which needs a free second core. The ratio of processor times does not need one.
    """
    problem = Problem(32, 64, 1024, 2)

    def run(count: int) -> None:
        torch.set_num_threads(count)
        problem.kernel(engine)

    candidates: dict[str, Callable[[], object]] = {"one": lambda: run(1), "two": lambda: run(2)}
    wall = rounds(candidates, repeats, time.perf_counter)
    cpu = rounds(candidates, repeats, time.process_time)
    torch.set_num_threads(1)
    gain, best = ratio(wall["one"], wall["two"]), min(wall["one"]) / min(wall["two"])
    return {
        "gain": gain,
        "best": best,
        "processor_time": ratio(cpu["two"], cpu["one"]),
        "seconds": wall,
        "meets_targets": max(gain, best) >= 1.6,
    }


SMALL = {"n_pert": 16, "batch": 16, "crop": 128}
UPDATES: tuple[dict[str, Any], ...] = (
    {"width": 32, "n_pert": 32, "batch": 32, "crop": 256},
    *(SMALL | {"width": width, "experts": n} for width, n in ((16, 1), (16, 8), (28, 1), (28, 4), (43, 2), (63, 1))),
    SMALL | {"width": 15, "experts": 16, "head": "shared-frozen"},
)
"""Updates of the training loop: one of the paper's width, and those of `small`."""


class TimedEngine(CpuEngine):
    """The kernel, and the processor time of the last perturbed losses, in seconds."""

    seconds: float

    def losses(self, *arguments: Any) -> NDArray[np.float64]:
        out: list[NDArray[np.float64]] = []
        self.seconds = timed(lambda: out.append(super(TimedEngine, self).losses(*arguments)), time.thread_time)
        return out[0]


class TorchHead(CpuEngine):
    """The same kernel, but with torch's products and softmax for the delta rule."""

    head_gradient = Engine.head_gradient


def update_share(settings: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Measure the share of a training update that is spent outside the perturbed losses.

    It covers batches, probes, their combination, the head's forward pass and delta rule, Adam for both, the averages of
    the weights, and the Python code around them. The row also has the update's time with torch's delta rule, whose bits
    differ between processors.
    """
    training = Training.model_validate(settings | {"updates": 1})
    experts = range(training.experts)
    run = RunSpec(
        id="benchmark", kind="arm", seed=0, start=None, shards="iid-n1", window=512, settings=training, milestones=(1,)
    )  # fmt: skip
    text = Stream.named(0, "benchmark").integers(1 << 20, 256).astype(np.uint8)
    ids = np.arange(2000, dtype=np.uint32)
    group = Group(run, experts, [Shard(Rows(text, 512, 512), ids, ids)] * len(experts), text)
    engine = TimedEngine()
    ours, other = (Trainer(SPSALearner(group, e, torch.device("cpu"))) for e in (engine, TorchHead()))
    losses = []

    def update() -> None:
        ours._step()
        losses.append(engine.seconds)

    times = rounds({"update": update, "torch_delta_rule": other._step}, 5 * repeats)
    outside = [1 - a / b for a, b in zip(losses[1:], times["update"], strict=True)]
    return {
        **settings,
        "share_outside_losses": median(outside),
        "quartiles": [float(q) for q in np.quantile(outside, (0.25, 0.75))],
        "torch_delta_rule": ratio(times["torch_delta_rule"], times["update"]),
        "seconds": {name: median(t) for name, t in (times | {"losses": losses}).items()},
    }


def machine(engine: CpuEngine) -> dict[str, Any]:
    return {
        "cpu": device_name("cpu"),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "instruction_set": engine.isa,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "soma": version("soma-repro"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds instead of seven, narrow models only")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    repeats = 3 if arguments.quick else 7
    torch.set_num_threads(1)
    engine = CpuEngine()
    result: dict[str, Any] = {"machine": machine(engine), "rounds": repeats, "one_thread": []}
    print(f"{'d':>4} {'B':>4} {'T':>5}  GF/s  of peak  of torch.mm  x naive  x naive, 8 rows")
    for case in CASES:
        if arguments.quick and case[0] > 64:
            continue
        row = against_naive(engine, case, repeats)
        result["one_thread"].append(row)
        print(
            f"{row['width']:4} {row['batch']:4} {row['length']:5} {row['gflops']:5.0f}  {row['share_of_peak']:6.0%} "
            f"{row['share_of_torch_mm']:11.0%}  {row['times_naive']:8.2f} {row['times_naive_8_rows']:15.2f}"
            f"{'' if row['meets_targets'] else '   below target'}"
        )
    result["two_threads"] = gain = threads(engine, repeats)
    print(
        f"two threads: {gain['gain']:.2f} x one (best against best {gain['best']:.2f}), "
        f"with {gain['processor_time']:.2f} x its processor time"
    )
    result["updates"] = [update_share(settings, repeats) for settings in UPDATES]
    for update in result["updates"]:
        print(
            f"an update at width {update['width']}, {update.get('experts', 1)} expert(s): "
            f"{update['share_outside_losses']:.1%} outside the perturbed losses "
            f"(quartiles {update['quartiles'][0]:.1%} to {update['quartiles'][1]:.1%}); with torch's delta rule "
            f"{update['torch_delta_rule']:.3f} x its time"
        )
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
