"""Number of experts to average, and pairs that complement each other (Figures 16 and 17, claims C10 and C11).

The losses of all experts on all windows may not fit in memory, so they come in blocks of windows.

Shapes: N experts, n windows of a block, S scored bytes of a window, K = n S scored bytes of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from soma.data.sets import EvaluationSet, open_validation
from soma.evaluation.ensemble import lstm_losses, mixture_losses, selected_losses
from soma.evaluation.published import Published
from soma.measurements.inputs import Inputs
from soma.numerics.rng import Stream

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
            rows_of_pairs = pairs(losses for losses, _ in _blocks(at, opened, data, same))
            together = complementarity(rows_of_pairs, _PERMUTATIONS, run.seed)
            frames += [rows_of_pairs.assign(part="pairs", **where), together.assign(part="complementarity", **where)]
    return pd.concat(frames, ignore_index=True)


def _blocks(
    at: Inputs, opened: Published, data: EvaluationSet, order: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.float64], Any]]:
    """Yield losses [n, N, S] of blocks of windows under all experts, in the given order, with the windows' slice."""
    losses = lstm_losses(at.engine, opened.experts())
    for first in range(0, len(data), _WINDOWS):
        own = slice(first, first + _WINDOWS)
        yield selected_losses(losses, data.windows[own], order[own], data.prefix), own


def active_experts(blocks: Iterable[tuple[NDArray[np.float64], NDArray[np.integer]]]) -> pd.DataFrame:
    """Compute the loss of the mixture of the first k experts for every k, one row per (k, document).

    Args:
        blocks: losses in nats [n, N, S], experts in the router's order (nearest first), and the document of each
            window [n]. A document may span several blocks.

    Returns:
        `nats` summed over the scored `bytes` of the document.
    """
    parts = []
    for losses, documents in blocks:
        windows, experts, scored = losses.shape
        if len(documents) != windows:
            raise ValueError(f"{windows} windows, but documents for {len(documents)}")
        for k in range(1, experts + 1):
            nats = mixture_losses(losses[:, :k]).sum(axis=1)
            parts.append(pd.DataFrame({"k": k, "document": documents, "nats": nats, "bytes": scored}))
    if not parts:
        raise ValueError("no losses were given")
    return pd.concat(parts).groupby(["k", "document"], as_index=False).sum()


def pairs(blocks: Iterable[NDArray[np.float64]]) -> pd.DataFrame:
    """Compute the gain from averaging two experts and the similarity of their errors, one row per pair.

    Args:
        blocks: losses in nats [n, N, S], experts in the same order in all windows.

    Returns:
        `gain`: mean of both experts' losses minus the loss of their mixture, nats per byte; never negative.
        `correlation`: Pearson correlation over bytes of both experts' losses, after subtracting the mean over all
            experts from the loss of each byte (so that bytes hard for all experts do not count as similarity).
        `first_loss`, `second_loss`: loss of each expert alone.

    Raises:
        ValueError: with two experts, whose residuals are always opposite.
    """
    scored, total, mixed, residual_sum, products = 0, np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0)
    for losses in blocks:
        experts = losses.shape[1]
        if experts < 3:
            raise ValueError(f"{experts} experts: residuals need three or more, those of two are always opposite")
        if not scored:
            total, residual_sum = np.zeros(experts), np.zeros(experts)
            mixed, products = np.zeros((experts, experts)), np.zeros((experts, experts))
        flat = losses.transpose(1, 0, 2).reshape(experts, -1)  # [N, K]
        residuals = flat - flat.mean(axis=0)
        scored += flat.shape[1]
        total += flat.sum(axis=1)
        residual_sum += residuals.sum(axis=1)
        products += residuals @ residuals.T
        for e in range(experts - 1):
            rest = flat[e + 1 :]
            both = np.stack([np.broadcast_to(flat[e], rest.shape), rest], axis=1)
            mixed[e, e + 1 :] += mixture_losses(both).sum(axis=1)
    if not scored:
        raise ValueError("no losses were given")
    loss = total / scored
    covariance = products / scored - np.outer(residual_sum, residual_sum) / scored**2
    deviation = np.sqrt(covariance.diagonal())
    if not deviation.all():
        raise ValueError(f"expert {int(deviation.argmin())} loses as much as the mean of all on every byte")
    first, second = np.triu_indices(len(loss), 1)
    return pd.DataFrame(
        {
            "first": first,
            "second": second,
            "gain": (loss[first] + loss[second]) / 2 - mixed[first, second] / scored,
            "correlation": (covariance / np.outer(deviation, deviation))[first, second],
            "first_loss": loss[first],
            "second_loss": loss[second],
        }
    )


def complementarity(rows: pd.DataFrame, permutations: int, seed: int) -> pd.DataFrame:
    """Test if pairs with less similar errors gain more, by Spearman's correlation across pairs, in one row.

    Pairs that share an expert are not independent, so the p-value comes from a Mantel test, which permutes the experts
    of the similarity matrix instead of the pairs. It is one-sided: the share of permutations (including the given
    order) with an equally or more negative correlation; with N experts it cannot be below 1 / N!.

    Args:
        rows: from `pairs`.
        permutations: number of random permutations of the experts.
    """
    first, second = rows["first"].to_numpy(), rows["second"].to_numpy()
    experts = int(second.max()) + 1
    # Ranks move with the pairs, so they are computed once and permutations only rearrange them.
    gain, similarity = (rankdata(rows[column]) for column in ("gain", "correlation"))
    matrix = np.zeros((experts, experts))
    matrix[first, second] = matrix[second, first] = similarity - similarity.mean()
    centred = gain - gain.mean()
    scale = np.sqrt((centred**2).sum() * (matrix[first, second] ** 2).sum())
    if scale == 0:
        raise ValueError("all pairs gain the same or are equally similar, so nothing can be correlated")
    observed = matrix[first, second] @ centred / scale
    orders = Stream.named(seed, "complementarity", "permutation").permutation(experts, update=np.arange(permutations))
    permuted = np.array([matrix[order[first], order[second]] @ centred / scale for order in orders])
    # Rounding must not hide the permutations that leave the pairs unchanged.
    as_low = 1 + int((permuted <= observed + 1e-12).sum())
    return pd.DataFrame(
        {
            "spearman": [observed],
            "p_value": [as_low / (permutations + 1)],
            "mean_gain": [rows["gain"].mean()],
            "experts": [experts],
            "pairs": [len(rows)],
            "permutations": [permutations],
        }
    )
