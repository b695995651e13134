"""Precision of the finite difference: the error of L(theta + eps z) - L(theta - eps z) against float64.

Not in the paper. It shows below which eps the rounding of the matrix products hides the signal; the paper trains with
TF32 kernels down to eps = 1e-5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from soma.forward.engine import Engine
from soma.forward.precision import PRECISIONS, rounded_products
from soma.forward.probes import Probes
from soma.forward.reference import ReferenceEngine
from soma.forward.torch_engine import TorchEngine
from soma.measurements.inputs import Inputs
from soma.models.experts import Experts
from soma.models.lstm import initialise
from soma.numerics.rng import Stream


def measure(at: Inputs) -> pd.DataFrame:
    """Measure errors at the initial and the trained weights of a run's first expert."""
    opened, device = at.runs[0], torch.device(at.compute.device)
    run, product = opened.run, at.product
    body, head = initialise(run.model, Stream.named(run.seed, "seed", "init"))
    experts = {"initial": Experts(run.model, body[None], head[None]), "trained": opened.experts()[0]}
    windows = at.windows(run)
    ids = np.linspace(0, len(windows) - 1, product["batch"]).astype(np.int64)
    tokens = windows.crops(ids, np.zeros_like(ids), run.settings.crop)
    stream = Stream.named(run.seed, "precision")
    probes = Probes(run.model, stream, run.settings.probe, 0, (0,), range(product["directions"]))
    on_device = {name: expert.to(device) for name, expert in experts.items()}
    rows = difference_errors(on_device, tokens, probes, product["eps"], at.engine, TorchEngine(device))
    return rows.assign(run=run.id, update=run.updates)


def difference_errors(
    weights: Mapping[str, Experts],
    tokens: NDArray[np.uint8],
    probes: Probes,
    eps: Sequence[float],
    engine: Engine,
    portable: TorchEngine,
) -> pd.DataFrame:
    """Measure relative errors, one row per (weights, precision, eps).

    Args:
        weights: one expert by the name of its weights, such as `initial` and `trained`.
        tokens: one batch [B, T + 1].
        probes: the directions of one expert.
        engine: the engine that trains; its own error is reported beside the emulated ones.
        portable: the engine whose products are rounded.

    Returns:
        `error`: root mean square error of the difference over directions, divided by that of the exact difference.
    """
    reference = ReferenceEngine()
    rows: list[dict[str, Any]] = []
    for name, expert in weights.items():
        for step in eps:
            arguments = (expert, tokens[None], probes, [step])
            exact = _differences(reference.losses(*arguments))
            measured = {f"{engine.name} engine": _differences(engine.losses(*arguments))}
            for precision in PRECISIONS:
                with rounded_products(precision):
                    label = precision if precision == "fp32" else f"{precision} (emulated)"
                    measured[label] = _differences(portable.losses(*arguments))
            for label, differences in measured.items():
                error = float(np.sqrt(((differences - exact) ** 2).mean() / (exact**2).mean()))
                row = {"weights": name, "precision": label, "eps": step, "error": error, "directions": len(exact)}
                rows.append(row)
    return pd.DataFrame(rows)


def _differences(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    return losses[0, :, 0] - losses[0, :, 1]
