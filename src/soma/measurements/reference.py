"""Error of real estimates against a backpropagation reference on a separate large batch (Figure 5, Table 8, C7).

Shapes: N experts, B sequences, T predicted bytes, M body parameters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from soma.accounting.machine import device_name
from soma.estimators.spsa import estimate
from soma.forward.engine import Engine
from soma.forward.probes import ProbeKind, Probes
from soma.measurements.gradients import exact_gradients
from soma.measurements.inputs import Inputs
from soma.models.experts import Experts
from soma.models.lstm import initialise
from soma.numerics.rng import Stream
from soma.runs import RunSpec


def measure(at: Inputs) -> pd.DataFrame:
    """Measure untrained (update 0) and at the end of every run, on its training text."""
    product, frames = at.product, []
    every = [tuple(setting) for setting in product["settings"]]
    fewest = min(entry["run"]["settings"]["experts"] for entry in at.settings["runs"])
    for opened in at.opened():
        run = opened.run
        # As in the paper, more directions and sequences are tried on the fewest experts alone.
        settings = every if run.experts == fewest else every[:1]
        for update, experts in ((0, _untrained(run)), (run.updates, opened.experts())):
            rows = estimate_errors(
                at.engine,
                experts,
                partial(_batch, at, run),
                settings,
                product["repeats"],
                product["sequences"],
                run.settings.eps,
                run.seed,
                run.settings.probe,
            )
            sizes = {"coordinates": run.experts * run.model.size, "width": run.settings.width}
            where = {"device": device_name(at.compute.device), "engine": at.engine.name, "threads": at.compute.threads}
            frames.append(rows.assign(run=run.id, seed=run.seed, update=update, **sizes, **where))
    return pd.concat(frames, ignore_index=True)


def _untrained(run: RunSpec) -> Experts:
    """Return the experts of a run with the weights that its seed run began from, the same for all."""
    body, head = initialise(run.model, Stream.named(run.seed, "seed", "init"))
    return Experts.of(run.model, body.repeat(run.experts, 1), head[None])


def _batch(at: Inputs, run: RunSpec, expert: int, index: int) -> NDArray[np.uint8]:
    return at.batch(run, expert, run.settings.batch, index, "reference")


Batches = Callable[[int, int], NDArray[np.uint8]]
"""Maps (expert, index) to a base batch [B, T + 1]; all have one size, and different indices share no sequence."""


def estimate_errors(
    engine: Engine,
    experts: Experts,
    batches: Batches,
    settings: Sequence[tuple[int, int]],
    repeats: int,
    reference_sequences: int,
    eps: float,
    seed: int,
    kind: ProbeKind = "sparse",
    dtype: torch.dtype = torch.float32,
    clock: Callable[[], float] = time.perf_counter,
) -> pd.DataFrame:
    """Measure the error and time of one global step's estimate, one row per setting.

    All directions of an estimate share its B sequences (docs/paper.md section 6, the paper's Eq. 17); accumulated
    batches, as in training, would have directions of their own. The experts estimate one after another, each using the
    whole machine. The references read the first batches of `batches` and estimates read later ones; repeat r of every
    setting starts at the same batch with the same probes, so that settings are compared on common data and probes.

    Args:
        settings: pairs of n_pert and B.
        repeats: estimates per setting, at least two.
        reference_sequences: sequences per expert in each of two disjoint reference batches.
        eps: perturbation size.
        kind: kind of probe; training uses sparse ones, whose error contains the bias of the rescaled mean
            (docs/paper.md section 6).
        dtype: precision of the reference gradients, which are summed in float64.

    Returns:
        `error`: mean over repeats of ||g_hat - g||^2 / ||g||^2 over all experts' coordinates, with g the mean of both
            references, and `error_se`, its standard error.
        `reference_error`: what the reference's own noise adds to every `error`, ||g_1 - g_2||^2 / (4 ||g||^2) for the
            references g_1 and g_2, the same in every row.
        `aggregate_seconds`: forwards and combination, summed over experts; `elapsed_seconds`: the slowest expert's.
            Both are medians over repeats, after one warm-up estimate of the first expert.
        `cosine_distance`: 1 - cosine of the two references, the same in every row.
    """
    base = len(batches(0, 0))
    if repeats < 2:
        raise ValueError(f"{repeats} estimate gives no standard error; use two or more")
    for sequences in (reference_sequences, *(b for _, b in settings if b > base)):
        if sequences < 1 or sequences % base:
            raise ValueError(f"{sequences} sequences are no whole number of batches of {base}")
    n = len(experts)
    each = reference_sequences // base
    references = [_reference(experts, batches, range(i * each, (i + 1) * each), dtype) for i in (0, 1)]
    reference = (references[0] + references[1]) / 2
    norm = (reference**2).sum()
    stream = Stream.named(seed, "reference", "probe")
    most = max(max(1, b // base) for _, b in settings)

    def step(e: int, repeat: int, n_pert: int, batch: int) -> tuple[NDArray[np.float64], float]:
        """Return expert e's estimate [M] and its seconds; the text is read before the clock starts."""
        first = 2 * each + repeat * most
        blocks = [batches(e, first + i) for i in range(max(1, batch // base))]
        tokens = np.ascontiguousarray(np.concatenate(blocks)[:batch])[None]
        probes = Probes(experts.spec, stream, kind, repeat, (e,), range(n_pert))
        start = clock()
        gradient = estimate(engine, experts[e], [tokens], [probes], [eps]).gradient[0]
        return gradient, clock() - start

    rows: list[dict[str, Any]] = []
    for n_pert, batch in settings:
        step(0, 0, n_pert, batch)
        errors, seconds = np.zeros(repeats), np.empty((repeats, n))
        for repeat in range(repeats):
            for e in range(n):
                gradient, seconds[repeat, e] = step(e, repeat, n_pert, batch)
                errors[repeat] += ((gradient - reference[e]) ** 2).sum() / norm
        rows.append(
            {
                "n_pert": n_pert,
                "batch": batch,
                "experts": n,
                "repeats": repeats,
                "error": errors.mean(),
                "error_se": errors.std(ddof=1) / repeats**0.5,
                "aggregate_seconds": np.median(seconds.sum(axis=1)),
                "elapsed_seconds": np.median(seconds.max(axis=1)),
                "reference_error": ((references[0] - references[1]) ** 2).sum() / (4 * norm),
                "cosine_distance": cosine_distance(*references),
                "reference_sequences": reference_sequences,
            }
        )
    return pd.DataFrame(rows)


def cosine_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return 1 - the cosine of the angle between two gradients, each flattened to a vector."""
    return float(1 - (a * b).sum() / ((a**2).sum() * (b**2).sum()) ** 0.5)


def _reference(experts: Experts, batches: Batches, indices: range, dtype: torch.dtype) -> NDArray[np.float64]:
    """Compute the exact gradient on all these batches together, [N, M]."""
    gradients = []
    for e, expert in enumerate(experts):
        tokens = np.concatenate([batches(e, i) for i in indices])[None]
        gradients.append(exact_gradients(expert, tokens, dtype))
    return np.concatenate(gradients)
