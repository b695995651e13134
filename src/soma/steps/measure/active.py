"""Active experts and pairs of experts, on ensemble validation (Figures 16 and 17, claims C10 and C11)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.analysis.experts import active_experts, complementarity, pairs
from soma.data.sets import EvaluationSet, open_validation
from soma.ensemble import lstm_losses, selected_losses
from soma.steps.measured import Inputs
from soma.steps.published import Published

_WINDOWS = 128  # windows whose losses under all experts are held in memory at once
_PERMUTATIONS = 10_000


def measure(at: Inputs) -> pd.DataFrame:
    """Measure rows by `part`: `active` (per k and document), `pairs` (per pair), `complementarity` (per run)."""
    data = open_validation(at.results / "sets/validation.parquet")
    frames = []
    for opened in at.opened():
        run = opened.run
        where = {"run": run.id, "seed": run.seed, "experts": run.experts, "update": run.updates}
        order = at.routers.select(run, data, run.experts)
        rows = active_experts((losses, data.document[own]) for losses, own in _blocks(at, opened, data, order))
        frames.append(rows.assign(part="active", **where))
        if run.id in at.product["pair_runs"]:
            same = np.broadcast_to(np.arange(run.experts), order.shape)
            found = pairs(losses for losses, _ in _blocks(at, opened, data, same))
            together = complementarity(found, _PERMUTATIONS, run.seed)
            frames += [found.assign(part="pairs", **where), together.assign(part="complementarity", **where)]
    return pd.concat(frames, ignore_index=True)


def _blocks(
    at: Inputs, opened: Published, data: EvaluationSet, order: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.float64], Any]]:
    """Yield losses [n, N, S] of blocks of windows under all experts, in the given order, with the windows' slice."""
    run = opened.run
    losses = lstm_losses(at.engine, run.model, *opened.weights(run.updates))
    for first in range(0, len(data), _WINDOWS):
        own = slice(first, first + _WINDOWS)
        yield selected_losses(losses, data.windows[own], order[own], data.prefix), own
