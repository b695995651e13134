"""How much more the estimate varies with summed losses, at the weights of the paired runs (Appendix J).

Both estimates read the same central differences D_e z_e of experts e: independent losses use x_e = D_e z_e, summed ones
x_e = (sum_f D_f) z_e. Their means are equal, and of N alike experts summed losses have about N times the variance. Pure
rounding noise would give N as well; the ratio in FP64 tells that it is none.

Shapes: N experts, J probes, B sequences, T predicted bytes, M body parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from soma.estimators.spsa import central_differences
from soma.evaluation.published import Published
from soma.forward.engine import Engine
from soma.forward.probes import ProbeKind, Probes
from soma.forward.torch_engine import TorchEngine
from soma.measurements.gradients import exact_gradients
from soma.measurements.inputs import Inputs
from soma.measurements.variance import activity, squared_errors, variance_of_one_probe
from soma.models.experts import Experts
from soma.numerics.rng import Stream


def measure(at: Inputs) -> pd.DataFrame:
    """Measure at the start and the end of every paired run, on its training text, in FP32 and FP64."""
    product, frames = at.product, []
    opened = {each.run.id: each for each in at.opened()}
    double = TorchEngine(torch.device(at.compute.device), torch.float64)
    engines = {f"fp32 ({at.engine.name})": at.engine, "fp64": double}
    for state, update, experts, each in states(opened, at.settings["phases"]):
        run, phase = each.run, at.settings["phases"][each.run.id]
        for batch in range(product["batches"]):
            text = [at.batch(run, e, product["batch"], batch, "ratios") for e in range(run.experts)]
            s = run.settings
            rows = variance_ratios(experts, np.stack(text), engines, s.eps, product["probes"], batch, run.seed, s.probe)
            where = {"phase": phase, "state": state, "update": update, "batch": batch, "seed": run.seed, "run": run.id}
            frames.append(rows.assign(**where))
    return pd.concat(frames, ignore_index=True)


def states(opened: Mapping[str, Published], phases: Mapping[str, str]) -> Iterator[tuple[str, int, Experts, Published]]:
    """Yield (name, update, weights, run) for every start, once, and for every end."""
    started = set[str | None]()
    for each in (opened[run] for run in phases):
        run = each.run
        if run.start not in started:
            yield "start", 0, _start(each, opened[str(run.start)]), each
        started.add(run.start)
        yield "end", run.updates, each.experts(), each


def _start(each: Published, start: Published) -> Experts:
    """Return the weights that a run began from: those of its first experts, or of one that all copied."""
    n = each.run.experts
    from_others = start.experts()
    first = from_others[:n] if len(from_others) >= n else from_others
    head = first.distinct_heads if each.shared_head is None else each.shared_head[None]
    return Experts.of(each.run.model, first.theta.expand(n, -1), head)


def variance_ratios(
    experts: Experts,
    tokens: NDArray[np.uint8],
    engines: Mapping[str, Engine],
    eps: float,
    probes: int,
    batch: int,
    seed: int,
    kind: ProbeKind = "sparse",
) -> pd.DataFrame:
    """Measure both variances at fixed weights on a fixed batch, one row per precision.

    Args:
        tokens: bytes [N, B, T + 1], a batch for each expert.
        engines: engine by name of its precision; all measure the same probes.
        probes: number J of single probes.
        batch: number of the batch, which selects the probes.

    Returns:
        `independent` and `summed`: mean over probes of ||x - E x||^2 / ||g||^2, with the exact gradient g and
            E x = diag(q) g (docs/paper.md section 6).
        `ratio`, summed over independent, and `predicted`, this ratio by the formulas for exact linear losses.
    """
    n = len(experts)
    several = Probes(experts.spec, Stream.named(seed, "ratios", "probe"), kind, batch, tuple(range(n)), range(probes))
    q, exact = activity(experts.spec, kind), exact_gradients(experts, np.ascontiguousarray(tokens))
    norm = (exact**2).sum()
    others = (n - 1) * q.sum() * (q * exact**2).sum()  # each expert's noise on the q.sum() active weights of the others
    own = variance_of_one_probe(exact, q, kind)
    rows: list[dict[str, Any]] = []
    for precision, engine in engines.items():
        losses = engine.losses(experts, tokens, several, [eps] * n)
        row: dict[str, Any] = {"precision": precision, "experts": n, "probes": probes}
        for rule in ("independent", "summed"):
            slopes = central_differences(losses, [eps] * n, rule)
            row[rule] = squared_errors(engine, several, slopes, q * exact, 1).mean() / norm
        rows.append(row | {"ratio": row["summed"] / row["independent"], "predicted": (own + others) / own})
    return pd.DataFrame(rows)
