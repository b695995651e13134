"""Drawing functions shared by figures: curves with bands, intervals, dot plots, and panels without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from soma.report.colours import MUTED, Look

Point = dict[str, Any]
"""A point of the paper, keyed by column of the drawn data."""

INTERVALS = "Thick: 95 % interval over documents; thin: over seeds, if there are two or more."
CURVES = "Mean over seeds; bands: 95 % over documents; bars at the ends: 95 % over seeds, if there are two or more."
ELSEWHERE = "The paper's numbers, of other sizes, text or devices, are not drawn."
NORMAL = 1.96
"""Half-width, in standard errors, of a 95 % interval of a mean over many estimates."""

ENDS = ["low", "high", "seed_low", "seed_high"]
"""Columns for the ends of a value's intervals over documents and over seeds."""
TEST, VALIDATION = "test loss (nats per byte)", "ensemble validation loss\n(nats per byte)"
"""Axis labels."""

_THIN = 1.1


def curve(axis: Axes, frame: pd.DataFrame, x: str, look: Look) -> None:
    """Draw a loss with a band for its interval over documents, and the interval over seeds at its end."""
    axis.plot(frame[x], frame["loss"], markersize=3.5, **look)
    axis.fill_between(frame[x], frame["low"], frame["high"], color=look["color"], alpha=0.12, linewidth=0)
    end = frame.iloc[-1]
    if np.isfinite(end["seed_low"]):
        axis.vlines(end[x], end["seed_low"], end["seed_high"], color=look["color"], linewidth=_THIN)


def intervals(
    axis: Axes, at: Sequence[float] | pd.Series, frame: pd.DataFrame, value: str, colour: str, vertical: bool = True,
    prefix: str = "", **options: Any,
) -> None:  # fmt: skip
    """Draw points with a thick interval over documents and a thin one over seeds.

    Args:
        at: positions on the other axis.
        prefix: prefix of the columns `low`, `high`, `seed_low` and `seed_high`.
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
    """Draw the paper's points, muted, or in the colours of `looks` if given."""
    for point in points:
        colour = looks[point[by]]["color"] if looks else MUTED
        axis.plot(point[x], point[y], "x", color=colour, markersize=5.5, alpha=0.7 if looks else 1.0, zorder=2.5)


def categories(axis: Axes, labels: Sequence[str]) -> None:
    """Write labels down the left side, the first on top."""
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.grid(visible=False, axis="y")


def zero(axis: Axes, vertical: bool = False) -> None:
    """Draw the line of equality at zero."""
    (axis.axvline if vertical else axis.axhline)(0.0, color=MUTED, linewidth=0.8, linestyle="--", zorder=1)


def nothing(axis: Axes, text: str = "not measured in this campaign") -> None:
    """Replace an empty panel by a message."""
    axis.set_axis_off()
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color=MUTED)


def with_paper(drawn: pd.DataFrame, points: Sequence[Point]) -> pd.DataFrame:
    """Append the paper's points to the measured rows, distinguished by `source`."""
    measured = drawn.assign(source="measured")
    return pd.concat([measured, pd.DataFrame(points).assign(source="paper")]) if points else measured
