"""The step `summary`: the first page of a campaign."""

from __future__ import annotations

from pathlib import Path

from soma.analysis.costs import campaign_totals
from soma.analysis.reading import load, load_plan
from soma.catalogue import FRONT
from soma.files.atomic import write_bytes
from soma.report import summary as page
from soma.report.paper import PaperValues
from soma.report.tables.controls import findings


def summary(settings: Path, results: Path, paper: Path, output: Path) -> None:
    """Write README.md in a campaign's folder, and the front page of the HTML report.

    Args:
        settings: settings of the whole campaign.
        results: folder of the campaign.
        output: README.md; front.rst is written beside it.
    """
    plan, values = load_plan(settings), PaperValues(paper)
    judged, controls, precision, sizes, costs, *timed = load(FRONT, plan, results)
    totals, where = campaign_totals(plan, costs), page.environment(plan, results / "runs", timed)
    sentences = findings(plan, controls, precision, sizes)
    text = page.readme(plan, values, judged, controls, sentences, totals, where)
    write_bytes(output, text.encode())
    write_bytes(output.with_name("front.rst"), page.front(plan, values, judged, totals, where).encode())
