"""Colours and markers, colour-blind-safe: an arm, or an N, looks the same in every figure of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import matplotlib
import numpy as np

from soma.plan import Plan

# Okabe and Ito's, with a wine red of Paul Tol's where their yellow would vanish on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#000000")
MUTED = "#8c8c8c"
_MARKERS = "osD^v<>phd"
_WARM = ("#D55E00", "#E69F00", "#CC79A7", "#882255")

Look = dict[str, Any]
"""`color` and `marker`, as matplotlib calls them."""
T = TypeVar("T")


def ramp(values: Sequence[T]) -> dict[T, Look]:
    """Looks of ascending values, such as of n_pert, from dark to light; readable in grey too."""
    shades = matplotlib.colormaps["viridis"](np.linspace(0.24, 0.78, len(values)))
    return {
        value: {"color": matplotlib.colors.to_hex(shade), "marker": _MARKERS[i % len(_MARKERS)]}
        for i, (value, shade) in enumerate(zip(values, shades, strict=True))
    }


def count_looks(plan: Plan) -> dict[int, Look]:
    """Looks of every N of a campaign: one model is black, more are lighter."""
    looks = ramp(sorted({1} | {arm.experts for arm in plan.arms.values()}))
    shades = ramp([n for n in looks if n > 1])
    return {n: look | {"color": shades[n]["color"] if n > 1 else "black"} for n, look in looks.items()}


def arm_looks(plan: Plan) -> dict[str, Look]:
    """Looks of every arm: that of its N; those of Figure 1 after the first with an N have their own."""
    counts = count_looks(plan)
    looks = {name: counts[arm.experts] for name, arm in plan.arms.items()}
    first = {plan.arms[name].experts: name for name in reversed(plan.config.products.fixed_size.arms)}
    others = [name for name in plan.config.products.fixed_size.arms if name not in first.values()]
    for i, name in enumerate(others):
        marker = _MARKERS[(len(counts) + i) % len(_MARKERS)]
        looks[name] = {"color": _WARM[i % len(_WARM)], "marker": marker}
    return looks
