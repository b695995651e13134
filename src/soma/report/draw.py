"""What several figures draw: curves with bands, intervals, dot plots, and a panel without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from soma.report.colours import MUTED, Look

Point = dict[str, Any]
"""A point of the paper's, by the names of the columns of what is drawn."""

INTERVALS = "Thick: 95 % interval over documents; thin: over seeds, if there are two or more."
CURVES = "Mean over seeds; bands: 95 % over documents; bars at the ends: 95 % over seeds, if there are two or more."
ELSEWHERE = "The paper's numbers, of other sizes, text or devices, are not drawn."
NORMAL = 1.96
"""Standard errors on either side of a mean over many estimates that make a 95 % interval."""

ENDS = ["low", "high", "seed_low", "seed_high"]
"""Columns of the ends of a value's intervals, over documents and over seeds."""
TEST, VALIDATION = "test loss (nats per byte)", "ensemble validation loss\n(nats per byte)"
"""Names of axes."""

_THIN = 1.1


def curve(axis: Axes, frame: pd.DataFrame, x: str, look: Look) -> None:
    """A loss with the band of its interval over documents; at its end the interval over seeds."""
    axis.plot(frame[x], frame["loss"], markersize=3.5, **look)
    axis.fill_between(frame[x], frame["low"], frame["high"], color=look["color"], alpha=0.12, linewidth=0)
    end = frame.iloc[-1]
    if np.isfinite(end["seed_low"]):
        axis.vlines(end[x], end["seed_low"], end["seed_high"], color=look["color"], linewidth=_THIN)


def intervals(
    axis: Axes, at: Sequence[float] | pd.Series, frame: pd.DataFrame, value: str, colour: str, vertical: bool = True,
    prefix: str = "", **options: Any,
) -> None:  # fmt: skip
    """Points with their interval over documents, thick, and over seeds, thin.

    Args:
        at: where they stand on the other axis.
        prefix: of the columns `low`, `high`, `seed_low` and `seed_high`.
    """
    lines = axis.vlines if vertical else axis.hlines
    places = np.asarray(at, dtype=float)
    for low, high, width, alpha in (("low", "high", 3.2, 0.4), ("seed_low", "seed_high", _THIN, 1.0)):
        ends = frame[prefix + low].to_numpy(dtype=float), frame[prefix + high].to_numpy(dtype=float)
        known = np.isfinite(ends[0])
        if known.any():
            lines(places[known], ends[0][known], ends[1][known], color=colour, linewidth=width, alpha=alpha)
    points = (places, frame[value]) if vertical else (frame[value], places)
    look: dict[str, Any] = {"marker": "o", "markersize": 5, "linestyle": "none"} | options
    axis.plot(*points, color=colour, markeredgecolor="white", markeredgewidth=0.6, **look)


def crosses(
    axis: Axes, points: Sequence[Point], x: str, y: str, looks: Mapping[Any, Look] | None = None, by: str = "arm"
) -> None:
    """The paper's own points, muted; in the colours of what they are of, if that is given."""
    for point in points:
        colour = looks[point[by]]["color"] if looks else MUTED
        axis.plot(point[x], point[y], "x", color=colour, markersize=5.5, alpha=0.7 if looks else 1.0, zorder=2.5)


def categories(axis: Axes, labels: Sequence[str]) -> None:
    """Names down the left side, the first on top."""
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")


def zero(axis: Axes, vertical: bool = False) -> None:
    """The line where both sides are equal."""
    (axis.axvline if vertical else axis.axhline)(0.0, color=MUTED, linewidth=0.8, linestyle="--", zorder=1)


def nothing(axis: Axes, text: str = "not measured in this campaign") -> None:
    """A panel that has nothing to show says so."""
    axis.set_axis_off()
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color=MUTED)


def with_paper(drawn: pd.DataFrame, points: Sequence[Point]) -> pd.DataFrame:
    """Measured rows and the paper's points under them; `source` tells them apart."""
    measured = drawn.assign(source="measured")
    return pd.concat([measured, pd.DataFrame(points).assign(source="paper")]) if points else measured
