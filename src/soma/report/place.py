"""Where labels go so that none covers another: beside an axis, or near their points."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from soma.report.style import MUTED

SIZE = 8
_WIDTH = 28  # characters of a line of a label
_LEADER = {"arrowstyle": "-", "color": MUTED, "lw": 0.5, "shrinkA": 1, "shrinkB": 2}


class Label(NamedTuple):
    text: str
    x: float
    y: float
    colour: str


def beside(axis: Axes, labels: Sequence[Label]) -> None:
    """Write labels to the right of the axis, each as near the height of its point as the others allow.

    The limits of the axis must be final. Call it before `near`.
    """
    if not labels:
        return
    figure: Any = axis.figure
    figure.draw_without_rendering()
    to_axis = axis.transAxes.inverted()
    at = [to_axis.transform(axis.transData.transform((label.x, label.y)))[1] for label in labels]
    order = np.argsort(at, kind="stable")
    texts = [textwrap.fill(labels[i].text, _WIDTH) for i in order]
    line = SIZE * 1.3 / 72 * figure.dpi / axis.bbox.height
    for i, text, y in zip(order, texts, _spread(np.array(at)[order], [line * (t.count("\n") + 1) for t in texts]),
                          strict=True):  # fmt: skip
        axis.annotate(
            text, (labels[i].x, labels[i].y), (1.03, y), textcoords="axes fraction", color=labels[i].colour,
            fontsize=SIZE, va="center", annotation_clip=False, arrowprops=_LEADER,
        )  # fmt: skip


def _spread(wanted: NDArray[np.float64], heights: Sequence[float]) -> NDArray[np.float64]:
    """Centres of labels with these heights, in ascending order, that do not overlap and lie as near as can be."""
    h = np.array(heights)
    offsets = np.concatenate([[0.0], np.cumsum((h[1:] + h[:-1]) / 2)])
    low, high = h[0] / 2, 1 - h[-1] / 2 - offsets[-1]
    if low > high:  # more than the axis is high: they stick out evenly on both sides
        low = high = (low + high) / 2
    return np.asarray(np.clip(isotonic_regression(wanted - offsets).x, low, high) + offsets)


def near(axis: Axes, labels: Sequence[Label], size: int = SIZE) -> None:
    """Write labels near their points, each at the first place around it that covers least of what is drawn.

    The layout stays as it is from here on.
    """
    figure: Any = axis.figure
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer = figure.canvas.get_renderer()
    drawn, taken = _drawn(axis), list[Bbox]()
    for label in labels:
        best: tuple[float, tuple[float, float], Bbox] | None = None
        for distance, (dx, dy) in _around():
            text = _write(axis, label, (dx, dy), size)
            box = text.get_window_extent(renderer)
            text.remove()
            inside = axis.bbox.x0 <= box.x0 and box.x1 <= axis.bbox.x1 and axis.bbox.y0 <= box.y0 <= box.y1 <= axis.bbox.y1
            covered = sum(box.overlaps(other) for other in taken)
            points = ((drawn > box.min) & (drawn < box.max)).all(axis=1).sum() if len(drawn) else 0
            cost = 1000 * covered + 100 * (not inside) + 5 * points + distance
            if best is None or cost < best[0]:
                best = (cost, (dx, dy), box)
        assert best is not None
        _write(axis, label, best[1], size)
        taken.append(best[2])


def _write(axis: Axes, label: Label, offset: tuple[float, float], size: int) -> Any:
    dx, dy = offset
    far = np.hypot(dx, dy) > 14
    return axis.annotate(
        textwrap.fill(label.text, _WIDTH), (label.x, label.y), offset, textcoords="offset points", color=label.colour,
        fontsize=size, ha="left" if dx > 2 else "right" if dx < -2 else "center", va="center", annotation_clip=False,
        arrowprops=_LEADER if far else None,
    )  # fmt: skip


def _around() -> Iterator[tuple[float, tuple[float, float]]]:
    """Offsets in points, nearest first: right, left, above, below and between."""
    for radius in (8, 14, 22, 32, 44):
        for angle in (0, 180, 90, 270, 45, 315, 135, 225):
            radians = np.deg2rad(angle)
            yield radius, (radius * float(np.cos(radians)), radius * float(np.sin(radians)))


def _drawn(axis: Axes) -> NDArray[np.float64]:
    """Points on everything that is drawn, in pixels."""
    paths = [line.get_transform().transform(line.get_xydata()) for line in axis.lines]
    for collection in axis.collections:
        if isinstance(collection, LineCollection):
            paths += [collection.get_transform().transform(s) for s in collection.get_segments()]
    steps = np.linspace(0, 1, 20)[:, None]
    dense = [a + steps * (b - a) for path in paths for a, b in zip(path[:-1], path[1:], strict=True)]
    found = np.concatenate([*paths, *dense]) if paths else np.zeros((0, 2))
    return found[np.isfinite(found).all(axis=1)]
