"""The step `figure`: one figure as SVG and PNG, with the drawn data as CSV."""

from __future__ import annotations

from pathlib import Path

from soma.analysis.functions import function
from soma.analysis.reading import load, load_plan
from soma.catalogue import FIGURES
from soma.report.paper import PaperValues
from soma.report.style import save, style


def figure(name: str, settings: Path, results: Path, paper: Path, output: Path) -> None:
    """Draw one figure of the catalogue.

    Args:
        settings: settings of the whole campaign.
        results: folder of the campaign.
        output: folder of all figures.
    """
    plan, entry = load_plan(settings), FIGURES[name]
    draw = function("soma.report.figures", entry.function)
    with style():
        drawing = draw(plan, PaperValues(paper), *load(entry.reads, plan, results))
        save(drawing, plan, output, name, entry.title)
