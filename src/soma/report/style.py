"""One look for every figure: colour-blind-safe (Okabe and Ito), direct labels, the campaign in the corner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from soma.manifest import atomic_path
from soma.plan import Plan
from soma.report.table import significant

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MUTED = "#9a9a9a"

_STYLE: Any = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
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


def log_axis(axis: Axes) -> None:
    """A logarithmic x axis that is labelled at 1, 2 and 5 of every decade, however few decades it spans."""
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: significant(x)))
    axis.xaxis.set_minor_formatter(NullFormatter())


def save(figure: Figure, drawn: pd.DataFrame, plan: Plan, directory: Path, name: str) -> None:
    """name.svg, name.png and name.csv (what is drawn), with the campaign in the corner and its watermark across."""
    figure.text(0.995, 0.005, f"campaign {plan.config.campaign}", ha="right", va="bottom", fontsize=7, color=MUTED)
    if plan.config.watermark:
        figure.text(
            0.5, 0.5, plan.config.watermark.upper(), ha="center", va="center", rotation=25, fontsize=64, color="black",
            alpha=0.06, zorder=0,
        )  # fmt: skip
    for suffix in ("svg", "png"):
        with atomic_path(directory / f"{name}.{suffix}") as path:
            metadata = {"Date": None} if suffix == "svg" else {"Software": None}
            figure.savefig(path, format=suffix, metadata=metadata)
    with atomic_path(directory / f"{name}.csv") as path:
        drawn.to_csv(path, index=False, lineterminator="\n")
    plt.close(figure)
