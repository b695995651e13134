"""The step `summarise`: rows that tables, figures and claims show."""

from __future__ import annotations

from pathlib import Path

from soma.analysis.functions import function
from soma.analysis.reading import load, load_plan
from soma.catalogue import SUMMARIES
from soma.files.tables import write_rows


def summarise(name: str, settings: Path, results: Path, output: Path) -> None:
    """Write one summary of the catalogue as Parquet.

    Args:
        settings: settings of the whole campaign.
        results: folder of the campaign.
    """
    plan, summary = load_plan(settings), SUMMARIES[name]
    rows = function("soma.analysis", summary.function)(plan, *load(summary.reads, plan, results))
    write_rows(output, rows)
