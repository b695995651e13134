"""The step `page`: the page to read, made from the finished products of a campaign."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from soma import layout
from soma.analysis.costs import campaign_totals
from soma.analysis.reading import load, load_plan
from soma.catalogue import PAGE
from soma.files.atomic import write_bytes
from soma.plan import Plan
from soma.report import summary
from soma.report.page.page import Page, render
from soma.report.paper import PaperValues


def page(settings: Path, results: Path, paper: Path, story: Path | None, output: Path) -> None:
    """Write index.html in a campaign's folder, from the products that are there; it says which are not.

    Args:
        settings: settings of the whole campaign.
        results: folder of the campaign.
        story: the template of what the campaign found in words, if it has one.
    """
    plan = load_plan(settings)
    made = render(Page(plan, PaperValues(paper), results, story), _facts(plan, results))
    write_bytes(output, made.encode())


def _facts(plan: Plan, results: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return what the campaign cost and where it ran, or nothing where its rows or records are not here."""
    records = [results / "runs" / folder / "run.json" for run in plan.runs.values() for folder in plan.folders(run)]
    if not all(path.is_file() for path in (*(results / file for file in layout.files(PAGE, plan)), *records)):
        return {}
    costs, *timed = load(PAGE, plan, results)
    where = summary.environment(plan, results / "runs", timed)
    return {"cost": campaign_totals(plan, costs), "where": where}
