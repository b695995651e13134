"""The step `table`: one table as Markdown, CSV and HTML."""

from __future__ import annotations

from pathlib import Path

from soma.analysis.functions import function
from soma.analysis.reading import load, load_plan
from soma.catalogue import TABLES
from soma.report.paper import PaperValues


def table(name: str, settings: Path, results: Path, paper: Path, output: Path) -> None:
    """Write one table of the catalogue.

    Args:
        settings: settings of the whole campaign.
        results: folder of the campaign.
        output: folder of all tables.
    """
    plan, entry = load_plan(settings), TABLES[name]
    build = function("soma.report.tables", entry.function)
    build(plan, PaperValues(paper), *load(entry.reads, plan, results)).write(output, name, entry.title)
