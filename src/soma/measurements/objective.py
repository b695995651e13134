"""Independent against summed losses, and batch against probes, on fixed objectives (Figure 11, claims C4 and C13).

Shapes: N experts, J probes, P perturbed coordinates of an expert, C sequences in the pool, B sequences in a batch,
T predicted bytes, R batches drawn for a set of probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from soma.estimators.spsa import Loss, central_differences
from soma.forward.engine import Engine
from soma.forward.probes import Probes
from soma.measurements.gradients import exact_gradients, sequence_gradients
from soma.measurements.inputs import Inputs
from soma.models.experts import Experts
from soma.numerics.rng import Stream


def measure(at: Inputs) -> pd.DataFrame:
    """Measure both halves of the figure for every run, distinguished by `part`."""
    product, frames = at.product, []
    for opened in at.opened():
        run = opened.run
        n = min(4, 1 << (run.experts.bit_length() - 1))
        common = (at.engine, opened.experts()[:n])
        fixed = np.stack([at.batch(run, e, product["batch"], 0, "objective") for e in range(n)])
        variance = separable_variance(*common, fixed, run.settings.eps, product["n_pert"], product["sets"], run.seed)
        texts = np.stack([at.batch(run, e, product["pool"], 0, "pool") for e in range(n)])
        pool = measure_pool(*common, texts, run.settings.eps, product["coordinates"], product["probes"], run.seed)
        groups = [g for g in (1, 2, 4) if g <= n]
        split = batch_probe_trade_off(pool, product["product"], product["repeats"], run.seed, groups)
        where = {"run": run.id, "seed": run.seed, "update": run.updates, "experts": n}
        frames += [variance.assign(part="variance", **where), split.assign(part="split", **where)]
    return pd.concat(frames, ignore_index=True)


_FLOATS = 1 << 24
"""Number of weights, or losses, of perturbed copies held in memory at once."""

# ------------------------------------------------------------------------------------- independent against summed


def separable_variance(
    engine: Engine,
    experts: Experts,
    tokens: NDArray[np.uint8],
    eps: float,
    n_pert: int,
    sets: int,
    seed: int,
) -> pd.DataFrame:
    """Measure the relative variance of both estimates of the gradient of sum_e L_e, from the same dense probes.

    Args:
        tokens: the fixed batch of each expert [N, B, T + 1].
        eps: perturbation size.
        n_pert: probes per estimate.
        sets: number of independent estimates, at least two.

    Returns:
        Three rows by `quantity`: `independent` and `summed`, the mean over sets of ||g_hat - g||^2 / ||g||^2 with exact
        g, and `ratio`, summed over independent; each with a standard error (jackknife over sets for the ratio) and the
        prediction of docs/paper.md section 6.
    """
    if sets < 2:
        raise ValueError(f"{sets} set of probes gives no standard error; use two or more")
    n = len(experts)
    exact = exact_gradients(experts, tokens)
    stream = Stream.named(seed, "objective", "probe")
    errors = {loss: np.empty(sets) for loss in get_args(Loss)}
    for i in range(sets):
        probes = Probes(experts.spec, stream, "dense", i, tuple(range(n)), range(n_pert))
        losses = engine.losses(experts, tokens, probes, [eps] * n)
        for loss in get_args(Loss):
            gradient = engine.combine(probes, central_differences(losses, [eps] * n, loss) / n_pert)
            errors[loss][i] = ((gradient - exact) ** 2).sum() / (exact**2).sum()
    own, all_ = errors["independent"], errors["summed"]
    coordinates = exact.size
    predicted = {"independent": (coordinates / n - 1) / n_pert, "summed": (coordinates - 1) / n_pert}
    measured = [(loss, errors[loss].mean(), errors[loss].std(ddof=1) / sets**0.5, predicted[loss]) for loss in errors]
    without = (all_.sum() - all_) / (own.sum() - own)  # the ratio with each set left out
    jackknife = ((sets - 1) / sets * ((without - without.mean()) ** 2).sum()) ** 0.5
    measured.append(("ratio", all_.mean() / own.mean(), jackknife, predicted["summed"] / predicted["independent"]))
    rows = pd.DataFrame(measured, columns=["quantity", "measured", "standard_error", "predicted"])
    return rows.assign(experts=n, coordinates=coordinates, n_pert=n_pert, sets=sets)


# ---------------------------------------------------------------------------------------------- batch against probes


@dataclass(frozen=True)
class Pool:
    """Central differences of every expert along every probe on every sequence of its pool, and exact gradients."""

    signs: NDArray[np.int8]
    """Probes on the chosen coordinates, -1 or 1, [N, J, P]."""
    slopes: NDArray[np.float64]
    """[L_c(theta + eps z_j) - L_c(theta - eps z_j)] / (2 eps) of sequence c, [N, J, C]."""
    gradients: NDArray[np.float64]
    """Exact gradient of every sequence on the chosen coordinates, [N, C, P]."""


def measure_pool(
    engine: Engine,
    experts: Experts,
    tokens: NDArray[np.uint8],
    eps: float,
    coordinates: int,
    probes: int,
    seed: int,
) -> Pool:
    """Perturb `coordinates` random coordinates of each expert and measure its slopes; the others stay fixed.

    Args:
        tokens: the pool of each expert [N, C, T + 1].
    """
    size = experts.spec.size
    if not 2 <= coordinates <= size:
        raise ValueError(f"{coordinates} coordinates of a body that has {size}")
    n, pool, time = len(experts), tokens.shape[1], tokens.shape[2] - 1
    words = Stream.named(seed, "trade-off", "probe").words(
        coordinates, direction=np.arange(probes), expert=np.arange(n)[:, None]
    )
    signs = 1 - 2 * (words & 1).astype(np.int8)
    chunk = max(1, _FLOATS // (2 * max(size, pool * time)))
    slopes = np.empty((n, probes, pool))
    gradients = np.empty((n, pool, coordinates))
    for e, expert in enumerate(experts):
        chosen = Stream.named(seed, "trade-off", "coordinates").permutation(size, expert=e)[:coordinates]
        gradients[e] = sequence_gradients(expert, tokens[e])[:, chosen]
        for first in range(0, probes, chunk):
            part = signs[e, first : first + chunk]
            step = expert.theta.new_zeros(len(part), size)
            step[:, torch.from_numpy(chosen).to(step.device)] = eps * torch.from_numpy(part).to(step)
            copies = expert.copies(torch.cat([expert.theta + step, expert.theta - step]))
            batch = np.ascontiguousarray(np.broadcast_to(tokens[e], (len(copies), *tokens.shape[1:])))
            losses = engine.token_losses(copies, batch).mean(axis=2)
            slopes[e, first : first + chunk] = (losses[: len(part)] - losses[len(part) :]) / (2 * eps)
    return Pool(signs, slopes, gradients)


def batch_probe_trade_off(
    pool: Pool, product: int, repeats: int, seed: int, groups: Sequence[int] = (1, 2, 4)
) -> pd.DataFrame:
    """Measure the squared error of estimates with n_pert * B = `product`, for every B that is a power of two.

    An estimate draws B sequences from the pool with replacement and uses them for all its n_pert probes. Losses are
    summed within groups of 1 (independent losses) up to N experts. The error covers all experts' coordinates together,
    relative to the exact gradient on the whole pool. Each set of n_pert probes serves several estimates, each with its
    own batch; sets do not overlap, and standard errors are over sets.

    Args:
        product: K, a power of two.
        repeats: least number of estimates for each B; all J // n_pert sets of probes are always used.
        groups: numbers of experts in a group; each must divide N.

    Returns:
        One row per (group, batch): `error` and `error_se`; `predicted`, a/n + nu/B + a nu/(nB) with a = d - 1 for the
        d coordinates of a group (docs/paper.md section 6) and nu from the exact gradients; `best_measured`, the B with
        the smallest error, and `best_predicted`, the B that minimises the prediction, sqrt(K nu / a) clamped to [1, K].
    """
    experts, probes, coordinates = pool.signs.shape
    if product < 1 or product & (product - 1):
        raise ValueError(f"n_pert * B is {product}, which is not a power of two")
    if probes < 2 * product:
        raise ValueError(f"{probes} probes in the pool; two sets of n_pert = {product} for B = 1 need {2 * product}")
    if any(experts % group for group in groups):
        raise ValueError(f"{experts} experts cannot be divided into groups of {', '.join(map(str, groups))}")
    exact = pool.gradients.mean(axis=1)
    norm = (exact**2).sum()
    nu = ((pool.gradients - exact[:, None]) ** 2).sum(axis=(0, 2)).mean() / norm
    rows: list[dict[str, Any]] = []
    batches = [1 << i for i in range(product.bit_length())]
    errors = {batch: _errors(pool, product // batch, batch, repeats, seed, groups, exact) / norm for batch in batches}
    for i, group in enumerate(groups):
        a = group * coordinates - 1
        means = {batch: errors[batch][i].mean() for batch in batches}
        for batch in batches:
            n, own = product // batch, errors[batch][i]
            rows.append(
                {
                    "group": group,
                    "coordinates": group * coordinates,
                    "batch": batch,
                    "n_pert": n,
                    "sets": len(own),
                    "error": means[batch],
                    "error_se": own.std(ddof=1) / len(own) ** 0.5,
                    "predicted": a / n + nu / batch + a * nu / (n * batch),
                    "nu": nu,
                    "best_measured": min(means, key=means.__getitem__),
                    "best_predicted": min(max((product * nu / a) ** 0.5, 1.0), float(product)),
                }
            )
    return pd.DataFrame(rows)


def _errors(
    pool: Pool, n: int, batch: int, repeats: int, seed: int, groups: Sequence[int], exact: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Average ||g_hat - g||^2 over batches for every set of n probes, [groups, sets]."""
    _, probes, sequences = pool.slopes.shape
    sets = probes // n
    draws = -(-repeats // sets)
    stream = Stream.named(seed, "trade-off", "batch")
    out = np.empty((len(groups), sets))
    for i in range(sets):
        own = slice(i * n, (i + 1) * n)
        chosen = stream.integers(draws * batch, sequences, update=batch, direction=i).reshape(draws, batch)
        weights = np.stack([np.bincount(row, minlength=sequences) for row in chosen]) / batch
        slopes = pool.slopes[:, own] @ weights.T  # [N, n, R]
        z = pool.signs[:, own].astype(np.float64)
        for g, group in enumerate(groups):
            summed = slopes.reshape(-1, group, n, draws).sum(axis=1).repeat(group, axis=0)
            estimates = summed.transpose(0, 2, 1) @ z / n  # [N, R, P]
            out[g, i] = ((estimates - exact[:, None]) ** 2).sum(axis=(0, 2)).mean()
    return out
