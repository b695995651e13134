"""Placement of labels without overlap: beside an axis, or near their points."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from soma.report.colours import MUTED

SIZE = 8
_WIDTH = 30  # characters per line of a label
_LEADER = {"arrowstyle": "-", "color": MUTED, "lw": 0.5, "shrinkA": 1, "shrinkB": 2}


class Label(NamedTuple):
    text: str
    x: float
    y: float
    colour: str
    height: float | None = None
    """Desired position beside an axis, as a fraction of the axis height; None means the height of its point."""


Labels = Sequence[tuple[Axes, Sequence[Label]]]
"""Axes with their labels."""


def wrapped(text: str) -> str:
    """Wrap the long lines of a label, keeping its own line breaks."""
    return "\n".join(textwrap.fill(line, _WIDTH) for line in text.splitlines())


def place(figure: Figure, beside: Labels, near: Labels) -> None:
    """Fix the layout of a finished figure, writing the labels beside its axes, then those near points in them."""
    layout: Any = figure.get_layout_engine()
    layout.execute(figure)
    for axis, labels in beside:
        _beside(axis, labels)
    layout.execute(figure)
    figure.set_layout_engine("none")
    for axis in figure.axes:
        # The last bits of the solver's positions vary between calls, and SVG names clip paths by a hash of them.
        axis.set_position(Bbox(axis.get_position().get_points().round(6)))
    for axis, labels in near:
        _near(axis, labels)


def _beside(axis: Axes, labels: Sequence[Label]) -> None:
    """Write labels to the right of the axis, each as close to its height as the others allow.

    A line leads to the point unless it lies outside the axis.
    """
    if not labels:
        return
    to_axis = axis.transAxes.inverted()
    points = [to_axis.transform(axis.transData.transform((label.x, label.y)))[1] for label in labels]
    at = np.array([y if label.height is None else label.height for y, label in zip(points, labels, strict=True)])
    order = np.argsort(at, kind="stable")
    line = SIZE * 1.3 * _pixels(axis) / axis.bbox.height
    heights = [line * (wrapped(labels[i].text).count("\n") + 1) for i in order]
    for i, y in zip(order, _spread(at[order], heights), strict=True):
        axis.annotate(
            wrapped(labels[i].text), (labels[i].x, labels[i].y), (1.03, y), textcoords="axes fraction",
            color=labels[i].colour, fontsize=SIZE, va="center", annotation_clip=False,
            arrowprops=_LEADER | {"relpos": (0.0, 0.5)} if 0 <= points[i] <= 1 else None,
        )  # fmt: skip


def _spread(wanted: NDArray[np.float64], heights: Sequence[float]) -> NDArray[np.float64]:
    """Return ascending label centres for these heights, as close to the wanted ones as possible without overlap."""
    h = np.array(heights)
    offsets = np.concatenate([[0.0], np.cumsum((h[1:] + h[:-1]) / 2)])
    low, high = h[0] / 2, 1 - h[-1] / 2 - offsets[-1]
    if low > high:  # taller than the axis: let the labels stick out evenly on both sides
        low = high = (low + high) / 2
    return np.asarray(np.clip(isotonic_regression(wanted - offsets).x, low, high) + offsets)


def _near(axis: Axes, labels: Sequence[Label]) -> None:
    """Write labels near their points, each at the first surrounding place that covers the least drawing."""
    figure: Any = axis.figure
    drawn, taken = _drawn(axis), list[Bbox]()
    for label in labels:
        text = axis.annotate(
            wrapped(label.text), (label.x, label.y), (0, 0), textcoords="offset points", color=label.colour,
            fontsize=SIZE, va="center", annotation_clip=False,
        )  # fmt: skip
        extent = text.get_window_extent(figure.canvas.get_renderer())
        point = axis.transData.transform((label.x, label.y))
        places = []
        for radius, dx, dy in _around():
            side = 0.0 if dx > 2 else 1.0 if dx < -2 else 0.5  # fraction of the text's width left of its anchor
            left, middle = point + np.array([dx, dy]) * _pixels(axis) - [side * extent.width, 0]
            box = Bbox.from_bounds(left, middle - extent.height / 2, extent.width, extent.height)
            covered = sum(box.overlaps(other) for other in taken)
            edge = 3 * _pixels(axis)  # half a marker
            points = ((drawn > np.asarray(box.min) - edge) & (drawn < np.asarray(box.max) + edge)).all(axis=1).sum()
            places.append((1000 * covered + 300 * (not _inside(box, axis)) + 10 * points + radius, dx, dy, side, box))
        _, dx, dy, side, box = min(places, key=lambda place: place[0])
        taken.append(box)
        text.set_horizontalalignment("left" if side == 0 else "right" if side == 1 else "center")
        text.set_position((dx, dy))
        if np.hypot(dx, dy) > 16:
            tip = (np.clip(point, box.min, box.max) - point) / _pixels(axis)
            axis.annotate("", (label.x, label.y), tuple(tip), textcoords="offset points", arrowprops=_LEADER)


def _pixels(axis: Axes) -> float:
    """Return pixels per point."""
    figure: Any = axis.figure
    return float(figure.dpi) / 72


def _inside(box: Bbox, axis: Axes) -> bool:
    outer = axis.bbox
    return bool(outer.x0 <= box.x0 and box.x1 <= outer.x1 and outer.y0 <= box.y0 and box.y1 <= outer.y1)


def _around() -> Iterator[tuple[float, float, float]]:
    """Yield distances and offsets in points, nearest first: right, left, above, below and between."""
    for radius in (8, 12, 16, 22, 30, 40, 52):
        for angle in (0, 180, 90, 270, 45, 315, 135, 225):
            radians = np.deg2rad(angle)
            yield radius, radius * float(np.cos(radians)), radius * float(np.sin(radians))


def _drawn(axis: Axes) -> NDArray[np.float64]:
    """Return points on everything that is drawn, in pixels."""
    paths = [line.get_transform().transform(line.get_xydata()) for line in axis.lines]
    for collection in axis.collections:
        if isinstance(collection, LineCollection):
            paths += [collection.get_transform().transform(s) for s in collection.get_segments()]
    paths = [np.repeat(path, 10, axis=0) if len(path) == 1 else path for path in paths]  # a marker on its own
    steps = np.linspace(0, 1, 20)[:, None]
    dense = [a + steps * (b - a) for path in paths for a, b in itertools.pairwise(path)]
    points = np.concatenate([*paths, *dense]) if paths else np.zeros((0, 2))
    return points[np.isfinite(points).all(axis=1)]
