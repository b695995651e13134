"""Precision of the finite difference: the error of L(theta + eps z) - L(theta - eps z) against float64.

Not in the paper. It shows below which eps the rounding of the matrix products hides the signal; the paper trains with
TF32 kernels down to eps = 1e-5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from soma.forward.engine import Engine
from soma.forward.precision import PRECISIONS, rounded_products
from soma.forward.reference import ReferenceEngine
from soma.forward.torch_engine import TorchEngine
from soma.models.spec import LSTMSpec
from soma.probes import Probes


def difference_errors(
    spec: LSTMSpec,
    weights: Mapping[str, tuple[Tensor, Tensor]],
    tokens: NDArray[np.uint8],
    probes: Probes,
    eps: Sequence[float],
    engine: Engine,
    portable: TorchEngine,
) -> pd.DataFrame:
    """Measure relative errors, one row per (weights, precision, eps).

    Args:
        weights: bodies [M] and heads [V, H] by name, such as `initial` and `trained`.
        tokens: one batch [B, T + 1].
        probes: the directions of one expert.
        engine: the engine that trains; its own error is reported beside the emulated ones.
        portable: the engine whose products are rounded.

    Returns:
        `error`: root mean square error of the difference over directions, divided by that of the exact difference.
    """
    reference = ReferenceEngine()
    rows: list[dict[str, Any]] = []
    for name, (body, head) in weights.items():
        for step in eps:
            arguments = (spec, body[None], head[None], tokens[None], probes, [step])
            exact = _differences(reference.losses(*arguments))
            measured = {f"{engine.name} engine": _differences(engine.losses(*arguments))}
            for precision in PRECISIONS:
                with rounded_products(precision):
                    label = precision if precision == "fp32" else f"{precision} (emulated)"
                    measured[label] = _differences(portable.losses(*arguments))
            for label, found in measured.items():
                error = float(np.sqrt(((found - exact) ** 2).mean() / (exact**2).mean()))
                row = {"weights": name, "precision": label, "eps": step, "error": error, "directions": len(exact)}
                rows.append(row)
    return pd.DataFrame(rows)


def _differences(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    return losses[0, :, 0] - losses[0, :, 1]
