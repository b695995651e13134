"""Colour-blind-safe colours and markers: an arm, or an N, looks the same in every figure of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import matplotlib
import numpy as np

from soma.plan import Plan

# Okabe and Ito's palette, but with Paul Tol's wine red in place of the yellow, which would vanish on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#000000")
MUTED = "#8c8c8c"
MARKERS = "osD^v<>phd"
_WARM = ("#D55E00", "#E69F00", "#CC79A7", "#882255")
_CHANGED = ("#332288", "#CC6677", "#AA4499", "#882255", "#999933")
"""Of ablations, which are drawn beside their base; also by Paul Tol."""

Scale = tuple[str, float, float]
_COUNTS: Scale = ("viridis", 0.24, 0.78)

Look = dict[str, Any]
"""Matplotlib's `color` and `marker`."""
T = TypeVar("T")


def ramp(values: Sequence[T], scale: Scale = _COUNTS) -> dict[T, Look]:
    """Return looks for ascending values, such as N, from dark to light; also readable in grey.

    Args:
        scale: name of a colour scale of Matplotlib that is dark at its start, and the part of it that is used.
    """
    name, first, last = scale
    shades = matplotlib.colormaps[name](np.linspace(first, last, len(values)))
    return {
        value: {"color": matplotlib.colors.to_hex(shade), "marker": MARKERS[i % len(MARKERS)]}
        for i, (value, shade) in enumerate(zip(values, shades, strict=True))
    }


def count_looks(plan: Plan) -> dict[int, Look]:
    """Return the look of every N in a campaign: black for one model, lighter for more."""
    looks = ramp(sorted({1} | {arm.experts for arm in plan.arms.values()}))
    shades = ramp([n for n in looks if n > 1])
    return {n: look | {"color": shades[n]["color"] if n > 1 else "black"} for n, look in looks.items()}


def swept_looks(plan: Plan) -> dict[str, dict[int, Look]]:
    """Return the look of every value of the swept axes: N as everywhere, a colour scale each for n_pert and B."""
    sweep = plan.config.products.sweep
    return {
        "experts": count_looks(plan),
        "n_pert": ramp(sorted(sweep.n_pert), ("Purples_r", 0.0, 0.5)),
        "batch": ramp(sorted(sweep.batch), ("YlOrBr_r", 0.1, 0.6)),
    }


def arm_looks(plan: Plan) -> dict[str, Look]:
    """Return the look of every arm: that of its N, except for later arms of Figure 1 with the same N, and ablations."""
    counts = count_looks(plan)
    looks = {name: counts[arm.experts] for name, arm in plan.arms.items()}
    first = {plan.arms[name].experts: name for name in reversed(plan.config.products.fixed_size.arms)}
    others = [name for name in plan.config.products.fixed_size.arms if name not in first.values()]
    for i, name in enumerate(others):
        marker = MARKERS[(len(counts) + i) % len(MARKERS)]
        looks[name] = {"color": _WARM[i % len(_WARM)], "marker": marker}
    ablation = plan.config.products.ablation
    for i, name in enumerate(ablation.arms[1:] if ablation else ()):
        looks[name] = looks[name] | {"color": _CHANGED[i % len(_CHANGED)]}
    return looks
