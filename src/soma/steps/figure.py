"""The step `figure`: one figure as SVG and PNG, with the drawn data as CSV."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

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
    module, _, function = entry.function.partition(".")
    draw = getattr(import_module(f"soma.report.figures.{module}"), function)
    with style():
        drawing = draw(plan, PaperValues(paper), *load(entry.reads, plan, results))
        save(drawing, plan, output, name, entry.title)
