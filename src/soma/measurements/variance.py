"""Relative centred variance of the SPSA estimate of a whole ensemble (Figure 10, claim C6).

The ensemble's estimate from probe j concatenates the experts' estimates, x_j = (D_ej z_ej) over experts e, with D_ej
the central difference of expert e's own loss.

Shapes: N experts, J single probes, B sequences, T predicted bytes, M body parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream


def measure(at: Inputs) -> pd.DataFrame:
    """Measure at the first and the last milestone of every run, on expert-validation text, in FP32 and FP64."""
    frames = [rows for opened in at.opened() for rows in _of_run(at, opened)]
    return pd.concat(frames, ignore_index=True)


def _of_run(at: Inputs, opened: Published) -> Iterator[pd.DataFrame]:
    run, product = opened.run, at.product
    chunks = np.stack(
        [
            [at.batch(run, e, product["batch"], chunk, "variance", validation=True) for e in range(run.experts)]
            for chunk in range(product["chunks"])
        ]
    )
    double = TorchEngine(torch.device(at.compute.device), torch.float64)
    engines = {
        f"fp32 ({at.engine.name})": (at.engine, product["probes"]),
        "fp64": (double, product["probes"]),
    }
    for update in at.updates(run):
        experts, s = opened.experts(update), run.settings
        rows = ensemble_variance(experts, chunks, engines, s.eps, product["n_pert"], run.seed, s.probe)
        sizes = {"coordinates": run.experts * run.model.size, "parameters": run.parameters}
        yield rows.assign(run=run.id, seed=run.seed, update=update, **sizes)


def ensemble_variance(
    experts: Experts,
    chunks: NDArray[np.uint8],
    engines: Mapping[str, tuple[Engine, int]],
    eps: float,
    n_perts: Sequence[int],
    seed: int,
    kind: ProbeKind = "sparse",
) -> pd.DataFrame:
    """Measure the variance at fixed weights on fixed text, one row per (chunk, precision, n_pert).

    Args:
        chunks: bytes [chunks, N, B, T + 1], one batch per expert.
        engines: engine by name of its precision, with the number J of single probes that it measures. All use the first
            J of the same probes on a chunk.
        eps: perturbation size.
        n_perts: numbers of probes per estimate.

    Returns:
        `variance`: mean over single probes of ||x - E x||^2 / ||g||^2, divided by n_pert, with E x = diag(q) g and the
            exact gradient g (docs/paper.md section 6); `variance_se`, its standard error over probes.
        `grouped`: the same for means of n_pert probes, which measures the division by n_pert; `grouped_se`, its
            standard error over the J / n_pert groups. Missing unless n_pert divides J; the error also with one group.
        `predicted`: the formula of section 6 summed over experts; for Gaussian probes, with 3 as the fourth moment in
            place of a sign's.
    """
    spec, n = experts.spec, len(experts)
    stream = Stream.named(seed, "variance", "probe")
    q = activity(spec, kind)
    rows: list[dict[str, Any]] = []
    for chunk, tokens in enumerate(np.ascontiguousarray(chunks)):
        exact = exact_gradients(experts, tokens)
        norm = (exact**2).sum()
        predicted = variance_of_one_probe(exact, q, kind) / norm
        for precision, (engine, count) in engines.items():
            probes = Probes(spec, stream, kind, chunk, tuple(range(n)), range(count))
            losses = engine.losses(experts, tokens, probes, [eps] * n)
            slopes = central_differences(losses, [eps] * n)
            single = squared_errors(engine, probes, slopes, q * exact, 1) / norm
            for n_pert in n_perts:
                whole = count % n_pert == 0
                grouped = squared_errors(engine, probes, slopes, q * exact, n_pert) / norm if whole else single[:0]
                rows.append(
                    {
                        "chunk": chunk,
                        "precision": precision,
                        "experts": n,
                        "n_pert": n_pert,
                        "probes": count,
                        "variance": single.mean() / n_pert,
                        "variance_se": _standard_error(single) / n_pert,
                        "grouped": grouped.mean() if len(grouped) else float("nan"),
                        "grouped_se": _standard_error(grouped),
                        "predicted": predicted / n_pert,
                    }
                )
    return pd.DataFrame(rows)


def activity(spec: LSTMSpec, kind: ProbeKind) -> NDArray[np.float64]:
    """Return q = E z^2, [M]; for a Rademacher probe, the probability that it moves a coordinate."""
    return np.where(spec.gains, 1.0, 0.5) if kind == "sparse" else np.ones(spec.size)


def variance_of_one_probe(exact: NDArray[np.float64], q: NDArray[np.float64], kind: ProbeKind) -> float:
    """Return E ||x - E x||^2 by the formula of docs/paper.md section 6, summed over gradients [N, M] and q [M]."""
    fourth = np.full_like(q, 3.0) if kind == "gaussian" else q  # E z^4
    return float(((fourth + q * (q.sum() - 2 * q)) * exact**2).sum())


def squared_errors(
    engine: Engine, probes: Probes, slopes: NDArray[np.float64], mean: NDArray[np.float64], n: int
) -> NDArray[np.float64]:
    """Compute ||x - mean||^2 for the means x of n consecutive probes; slopes [N, J], mean [N, M], result [J / n]."""
    out = np.empty(slopes.shape[1] // n)
    for i in range(len(out)):
        group = slice(i * n, (i + 1) * n)
        x = engine.combine(probes.part(slice(None), group), slopes[:, group] / n)
        out[i] = ((x - mean) ** 2).sum()
    return out


def _standard_error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")
