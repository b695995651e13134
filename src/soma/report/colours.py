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
_MARKERS = "osD^v<>phd"
_WARM = ("#D55E00", "#E69F00", "#CC79A7", "#882255")

Look = dict[str, Any]
"""Matplotlib's `color` and `marker`."""
T = TypeVar("T")


def ramp(values: Sequence[T]) -> dict[T, Look]:
    """Return looks for ascending values, such as n_pert, from dark to light; also readable in grey."""
    shades = matplotlib.colormaps["viridis"](np.linspace(0.24, 0.78, len(values)))
    return {
        value: {"color": matplotlib.colors.to_hex(shade), "marker": _MARKERS[i % len(_MARKERS)]}
        for i, (value, shade) in enumerate(zip(values, shades, strict=True))
    }


def count_looks(plan: Plan) -> dict[int, Look]:
    """Return the look of every N in a campaign: black for one model, lighter for more."""
    looks = ramp(sorted({1} | {arm.experts for arm in plan.arms.values()}))
    shades = ramp([n for n in looks if n > 1])
    return {n: look | {"color": shades[n]["color"] if n > 1 else "black"} for n, look in looks.items()}


def arm_looks(plan: Plan) -> dict[str, Look]:
    """Return the look of every arm: that of its N, except for later arms of Figure 1 with the same N."""
    counts = count_looks(plan)
    looks = {name: counts[arm.experts] for name, arm in plan.arms.items()}
    first = {plan.arms[name].experts: name for name in reversed(plan.config.products.fixed_size.arms)}
    others = [name for name in plan.config.products.fixed_size.arms if name not in first.values()]
    for i, name in enumerate(others):
        marker = _MARKERS[(len(counts) + i) % len(_MARKERS)]
        looks[name] = {"color": _WARM[i % len(_WARM)], "marker": marker}
    return looks
