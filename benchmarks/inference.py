"""Inference benchmark on this machine: `python benchmarks/inference.py [--device cuda] [--model FOLDER ...]`.

Times complete requests as in Table 12 (soma.inference.benchmark): windows of 1,024 bytes, 256 routed and 768 scored,
median of 7 after 2 warm-ups. Without --model, it uses the paper's full sizes with random weights, a random router and
random words. Speed does not depend on the learned weights, but random centroids spread requests more evenly than
trained ones. N = 256 is compared with the straightforward implementation, a loop over experts with torch.nn.LSTM.
Writes benchmarks/inference.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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
from soma.inference import Ensemble
from soma.inference.benchmark import REPEATS, WARM_UPS, measure, timed
from soma.inference.route import PrefixRouter
from soma.models.experts import Experts
from soma.models.lstm import initialise, tensors
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream
from soma.routing.features import Features
from soma.routing.router import Router

WINDOW, PREFIX, ACTIVE = 1024, 256, 4
SIZES = {1: 509, 2: 361, 8: 181, 256: 32}
"""Width by number of experts: 8.4 million parameters each."""
WORDS, DIMENSIONS = 50_000, 128
TARGET = 4.0
"""Minimum ratio of our throughput to the loop's, on a CPU."""


def vocabulary() -> tuple[str, ...]:
    """Draw words of 3 to 8 letters, sorted."""
    stream = Stream.named(0, "vocabulary")
    lengths = stream.integers(2 * WORDS, 6, direction=1) + 3
    letters = stream.integers(2 * WORDS * 8, 26, direction=2).reshape(-1, 8) + ord("a")
    words = {bytes(row[:n].astype(np.uint8)).decode() for row, n in zip(letters, lengths, strict=True)}
    return tuple(sorted(words)[:WORDS])


def requests(words: tuple[str, ...], count: int) -> NDArray[np.uint8]:
    """Draw windows of text whose words follow Zipf's law over a random order of the vocabulary, [n, W + 1]."""
    stream = Stream.named(0, "requests")
    order = stream.permutation(len(words))
    ranks = np.exp(stream.uniform(count * WINDOW, direction=1) * np.log(len(words))).astype(np.int64) - 1
    text = " ".join(words[order[rank]] for rank in ranks)
    return np.frombuffer(text.encode()[: count * (WINDOW + 1)], np.uint8).reshape(count, WINDOW + 1)


def random_router(words: tuple[str, ...], experts: int) -> PrefixRouter:
    """Draw features and centroids of the paper's sizes."""
    stream = Stream.named(0, "router")
    features = Features(
        words,
        np.ones(len(words), np.float32),
        stream.normal(DIMENSIONS * len(words)).reshape(DIMENSIONS, -1).astype(np.float32),
        np.zeros(DIMENSIONS, np.float32),
        "random",
    )
    centroids = stream.normal(experts * DIMENSIONS, direction=1).reshape(experts, -1)
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    zero, sizes = np.zeros(experts, np.float32), np.ones(experts, np.int64)
    return PrefixRouter(Router(features, centroids.astype(np.float32), zero, sizes, "nearest"))


def random_ensemble(words: tuple[str, ...], experts: int, engine: str, device: str) -> Ensemble:
    """Draw weights of the paper's sizes; experts of width 32 share a head, wider ones have their own heads."""
    spec = LSTMSpec(SIZES[experts])
    drawn = [initialise(spec, Stream.named(e, "benchmark")) for e in range(experts)]
    heads = torch.stack([head for _, head in drawn])
    return Ensemble(
        Experts.of(spec, torch.stack([body for body, _ in drawn]), heads[:1] if spec.width == 32 else heads),
        random_router(words, experts),
        min(ACTIVE, experts),
        PREFIX,
        WINDOW,
        engine=engine,
        device=device,
    )


class NaiveLoop:
    """The straightforward implementation: for each expert with requests, modules of torch.nn over these requests."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble, self.spec = ensemble, ensemble.experts.spec
        experts = ensemble.experts.to(torch.device(ensemble.device))
        named = [tensors(self.spec, expert.theta) for expert in experts]
        self.weights = [{name: value[0] for name, value in w.items()} for w in named]
        self.heads = experts.head
        self.lstms = [[self._lstm(w, block) for block in range(self.spec.depth)] for w in self.weights]

    def _lstm(self, w: dict[str, Tensor], block: int) -> nn.LSTM:
        d = self.spec.width
        lstm = nn.LSTM(d, d, bias=False, batch_first=True).to(self.ensemble.device).requires_grad_(False)
        lstm.get_parameter("weight_ih_l0").copy_(w[f"blocks.{block}.lstm_input"])
        lstm.get_parameter("weight_hh_l0").copy_(w[f"blocks.{block}.lstm_hidden"])
        return lstm

    @torch.inference_mode()
    def losses(self, windows: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Compute nats of every scored byte, [n, S], with the same routing."""
        selected = self.ensemble.select(windows)
        tokens = torch.tensor(windows, device=self.ensemble.device).long()
        out = torch.empty(*selected.shape, WINDOW - PREFIX, device=self.ensemble.device)
        for e in np.unique(selected):
            row, column = (torch.from_numpy(x) for x in np.nonzero(selected == e))
            out[row, column] = self._nats(int(e), tokens[row])
        mean = torch.logsumexp(-out.double(), dim=1) - np.log(selected.shape[1])
        return (-mean).cpu().numpy()

    def _nats(self, e: int, tokens: Tensor) -> Tensor:
        w, head = self.weights[e], self.heads[e]
        d = (self.spec.width,)
        x = F.embedding(tokens[:, :-1], head)
        if self.spec.projected:
            x = F.linear(x, w["project_in"])
        for i, lstm in enumerate(self.lstms[e]):
            x = x + lstm(F.layer_norm(x, d, w[f"blocks.{i}.lstm_norm"]))[0]
            up = F.gelu(F.linear(F.layer_norm(x, d, w[f"blocks.{i}.mlp_norm"]), w[f"blocks.{i}.mlp_up"]))
            x = x + F.linear(up, w[f"blocks.{i}.mlp_down"])
        x = F.layer_norm(x[:, PREFIX:], d, w["norm"])
        if self.spec.projected:
            x = F.linear(x, w["project_out"])
        logits = F.linear(x, head)
        targets = tokens[:, PREFIX + 1 :]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


def against_naive(ensemble: Ensemble, windows: NDArray[np.uint8], repeats: int, warm_ups: int) -> dict[str, Any]:
    """Time the loop and the ensemble in turn, so that both see the same machine load, and return their ratio.

    On a CPU the loop runs once on one thread and once on all, and the faster time counts, since its products are small.
    """
    naive, threads = NaiveLoop(ensemble), torch.get_num_threads()
    difference = float(np.abs(naive.losses(windows) - ensemble.losses(windows)).max())

    def once(work: Callable[[NDArray[np.uint8]], NDArray[np.float64]], count: int) -> float:
        torch.set_num_threads(count)
        return timed(lambda: float(work(windows).mean()), 1, 0)[0][0]

    def pair() -> tuple[float, float]:
        return min(once(naive.losses, n) for n in sorted({1, threads})), once(ensemble.losses, threads)

    pairs = [pair() for _ in range(warm_ups + repeats)][warm_ups:]
    ratio = median(slow / fast for slow, fast in pairs)
    return {
        "seconds": median(slow for slow, _ in pairs),
        "bytes_per_second": len(windows) * WINDOW / median(slow for slow, _ in pairs),
        "times_naive": ratio,
        "largest_difference": difference,
        "meets_target": ratio >= TARGET,
    }


def machine(device: str) -> dict[str, Any]:
    return {
        "cpu": device_name("cpu"),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "gpu": device_name(device) if device.startswith("cuda") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "soma": version("soma-repro"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", default="auto", help="auto, cpu, torch, triton or evaluator")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--requests", type=int, nargs="+", help="requests per batch (default: 1 and 16; 16 and 256 on a GPU)"
    )
    parser.add_argument("--experts", type=int, nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument(
        "--model", nargs="+", default=[], help="folders written by `soma export`, instead of random weights"
    )
    parser.add_argument("--quick", action="store_true", help="three repeats after one warm-up")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    repeats, warm_ups = (3, 1) if arguments.quick else (REPEATS, WARM_UPS)
    torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    batches = arguments.requests or ([16, 256] if arguments.device.startswith("cuda") else [1, 16])
    words = vocabulary()
    result: dict[str, Any] = {"machine": machine(arguments.device), "rows": []}
    print(f"{'N':>4} {'d':>4} {'k':>2} {'requests':>8}  bytes/s   latency  routing  peak MB  x nn.LSTM loop")

    def report(ensemble: Ensemble, windows: NDArray[np.uint8], source: str, compare: bool) -> None:
        row = measure(ensemble, windows, repeats=repeats, warm_ups=warm_ups) | {"weights": source}
        if compare:
            row["naive"] = against_naive(ensemble, windows, repeats, warm_ups)
        result["rows"].append(row)
        ratio = f"{row['naive']['times_naive']:14.2f}" if compare else ""
        print(
            f"{row['experts']:4} {row['width']:4} {row['k']:2} {row['requests']:8} {row['bytes_per_second']:8.0f}  "
            f"{1e3 * row['latency_seconds']:6.1f} ms {row['routing_share']:7.2%} {row['peak_bytes'] / 2**20:8.0f} "
            f"{ratio}"
            f"{'' if not compare or row['naive']['meets_target'] else '   below target'}",
            flush=True,
        )

    if arguments.model:
        for folder in arguments.model:
            ensemble = Ensemble.load(folder, engine=arguments.engine, device=arguments.device)
            for count in batches:
                text = requests(words, count * -(-(ensemble.window + 1) // WINDOW)).reshape(-1)
                windows = text[: count * (ensemble.window + 1)].reshape(count, -1)
                report(ensemble, windows, folder, False)
    else:
        for experts in arguments.experts:
            ensemble = random_ensemble(words, experts, arguments.engine, arguments.device)
            for count in batches:
                report(ensemble, requests(words, count), "random", experts == 256)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
