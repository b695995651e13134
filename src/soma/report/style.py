"""Common style of all figures: direct labels, and the campaign with its size in the corner."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from soma.files.atomic import atomic_path
from soma.plan import Plan
from soma.report.colours import MUTED
from soma.report.place import Labels, place
from soma.report.table import significant, span

LINE = 0.15
"""Height in inches of a line of text under the panels."""

_STYLE: Any = {
    "figure.dpi": 200,  # text is laid out at the saved resolution, since its width does not scale exactly
    "savefig.dpi": "figure",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "figure.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "svg.hashsalt": "soma",  # stable element ids: the same rows give the same bytes
    "svg.fonttype": "none",
}


@contextmanager
def style() -> Iterator[None]:
    with plt.rc_context(_STYLE):
        yield


def panels(
    columns: int, note: str, rows: int = 1, size: tuple[float, float] = (8.6, 3.9), **options: Any
) -> tuple[Figure, Any]:
    """Create a figure and its axes [rows, columns], with an explanation below; `save` adds the title above."""
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **options)
    lines = textwrap.wrap(note.replace(" %", "\u00a0%"), int(size[0] * 17.5))
    for i, line in enumerate(reversed(lines)):
        y = (i + 1.2) * LINE / size[1]
        figure.text(0.008, y, line, ha="left", va="bottom", fontsize=7, color="#555555")
    foot = (len(lines) + 1.4) * LINE / size[1]
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, foot, 1, 1 - foot))
    return figure, axes


def log_axis(axis: Axes, which: str = "x", base: int = 10) -> None:
    """Make an axis logarithmic, with readable ticks even over few decades; call it after drawing everything.

    Args:
        base: base of the ticks; 2 for values that are powers of two.
    """
    getattr(axis, f"set_{which}scale")("log", base=base)
    low, high = getattr(axis, f"get_{which}lim")()
    span = abs(np.log10(high / low))
    own = axis.xaxis if which == "x" else axis.yaxis
    if base == 2:
        own.set_major_locator(LogLocator(base=2, numticks=12))
    elif span < 0.6:
        own.set_major_locator(MaxNLocator(4))
    else:
        subs = (1.0, 2.0, 5.0) if span < 1.3 else (1.0, 3.0) if span < 2.6 else (1.0,)
        own.set_major_locator(LogLocator(subs=subs, numticks=5))
    own.set_major_formatter(FuncFormatter(lambda x, _: _tick(float(x))))
    own.set_minor_locator(NullLocator())
    own.set_minor_formatter(NullFormatter())


def _tick(x: float) -> str:
    """Format a tick, with powers of ten from a million on, since ticks are close together."""
    return significant(x) if x < 1e6 else f"{x:.3g}".replace("e+0", "e").replace("e+", "e")


@dataclass(frozen=True)
class Drawing:
    """A figure with the data that it shows.

    Labels are kept apart because their places depend on everything else in the figure, so that they are written last.
    """

    figure: Figure
    data: pd.DataFrame
    beside: Labels = ()
    """Labels to the right of axes."""
    near: Labels = ()
    """Labels of points in axes."""


def save(drawing: Drawing, plan: Plan, directory: Path, name: str, title: str) -> None:
    """Write name.svg, name.png and name.csv (the drawn data), with title, labels, campaign and watermark."""
    figure = drawing.figure
    figure.suptitle(title, x=0.008, ha="left")
    place(figure, drawing.beside, drawing.near)
    figure.text(
        0.995,
        0.03 / figure.get_figheight(),
        _campaign(plan, drawing.data),
        ha="right",
        va="bottom",
        fontsize=7,
        color=MUTED,
    )
    if plan.config.watermark:
        figure.text(
            0.5, 0.5, plan.config.watermark.upper(), ha="center", va="center", rotation=25, fontsize=64, color=MUTED,
            alpha=0.16, zorder=5,
        )  # fmt: skip
    words = {"Title": title, "Description": described(drawing, title)}
    for suffix, left_out in (("svg", "Date"), ("png", "Software")):
        with atomic_path(directory / f"{name}.{suffix}") as path:
            figure.savefig(path, format=suffix, metadata=words | {left_out: None})
    with atomic_path(directory / f"{name}.csv") as path:
        drawing.data.to_csv(path, index=False, lineterminator="\n")
    plt.close(figure)


def described(drawing: Drawing, title: str) -> str:
    """Say what a figure shows, for readers who cannot see it: the axes of every panel, and what is drawn in it."""
    named = dict[Axes, list[str]]()
    for axis, labels in (*drawing.beside, *drawing.near):
        named.setdefault(axis, []).extend(label.text for label in labels)
    panels, scale, rows = list[str](), "", ""
    for axis in drawing.figure.axes:
        if not axis.axison:
            continue
        # Panels side by side share the scale and the names of the first.
        scale = axis.get_ylabel() or scale
        rows = "; ".join(filter(None, (text.get_text() for text in axis.get_yticklabels()))) or rows
        what = f"{axis.get_xlabel()} for each of {rows}" if _has_names(axis) else f"{scale} against {axis.get_xlabel()}"
        words = "; ".join(named.get(axis, []))
        parts = (axis.get_title(loc="left"), what, f"labelled {words}" if words else "")
        panels.append(" ".join(": ".join(filter(None, parts)).split()))
    return ". ".join([title.rstrip("?."), *panels]) + "."


def _has_names(axis: Axes) -> bool:
    """Return True if the left side of a panel has names instead of a scale."""
    return isinstance(axis.yaxis.get_major_locator(), FixedLocator)


def _campaign(plan: Plan, data: pd.DataFrame) -> str:
    """Describe the campaign, with the sizes and budgets of the runs whose ids are in the drawn data."""
    runs = [plan.runs[run] for run in {*" ".join(data["run"].dropna()).split()}]
    campaign = f"campaign {plan.config.campaign}"
    if not runs:
        return campaign
    parameters = span(run.parameters for run in runs)
    operations = span((float(run.operations(run.updates)) for run in runs), significant)
    return f"{campaign}: {parameters} parameters, {operations} operations"
