"""Reporting steps: from rows to tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from soma.files.atomic import read_json, write_bytes
from soma.plan import Plan
from soma.report import comparisons, controls, fixed_size, measured, summary, sweeps
from soma.report.claims import claims_table, verdicts
from soma.report.clusters import clusters_table
from soma.report.paper import PaperValues
from soma.report.table import Table
from soma.steps.summarise import load_plan


def write_table(
    name: str, settings: Path, measurements: Path, sets: Path, routing: Path, paper: Path, output: Path
) -> None:
    """Write one table as Markdown, CSV and HTML."""
    plan, values = load_plan(settings), PaperValues(paper)

    def rows(kind: str) -> pd.DataFrame:
        return pd.read_parquet(measurements / f"{kind}.parquet")

    def set_facts() -> Mapping[str, Any]:
        return {role: read_json(sets / f"{role}.json") for role in ("validation", "test")}

    products: dict[str, Callable[[], Table]] = {
        "claims": lambda: claims_table(plan, values, verdicts(plan, rows), rows("reference")),
        "controls": lambda: controls.controls_table(plan, rows("controls"), _findings(plan, rows)),
        "sizes": lambda: controls.sizes_table(plan, rows("sizes"), rows("differences")),
        "estimators": lambda: comparisons.estimators_table(plan, rows("estimators")),
        "precision": lambda: controls.precision_table(plan, rows("precision")),
        "table1": lambda: fixed_size.table1(plan, values, set_facts()),
        "table2": lambda: fixed_size.table2(plan, values),
        "table3": lambda: fixed_size.table3(plan, values, rows("costs"), rows("reference")),
        "table4": lambda: fixed_size.table4(plan, values, rows("losses")),
        "table5": lambda: comparisons.table5(plan, values, rows("backpropagation")),
        "table6": lambda: comparisons.table6(plan, values, rows("tuning")),
        "table7": lambda: comparisons.table7(plan, values, rows("tuning-compared")),
        "table8": lambda: measured.table8(plan, values, rows("reference")),
        "table9": lambda: fixed_size.table9(plan, values, rows("losses")),
        "table10": lambda: sweeps.table10(plan, values, rows("budgets")),
        "table11": lambda: comparisons.table11(plan, values, rows("allocation")),
        "table12": lambda: measured.table12(plan, values, rows("inference")),
        "table13": lambda: measured.table13(plan, values, rows("serving"), rows("inference"), rows("costs")),
        "ablation": lambda: comparisons.ablation_table(plan, values, rows("ablation")),
        "crossings": lambda: sweeps.crossings_table(plan, values, rows("crossings")),
        "steps": lambda: sweeps.steps_table(plan, values, rows("costs")),
        "populations": lambda: comparisons.populations_table(plan, rows("populations")),
        "costs": lambda: fixed_size.costs_table(plan, rows("costs")),
        "clusters": lambda: clusters_table(plan, [read_json(p) for p in sorted(routing.glob("clusters-n*.json"))]),
    }
    products[name]().write(output)


def _findings(plan: Plan, rows: Callable[[str], pd.DataFrame]) -> tuple[str, str]:
    """Return the findings of the controls that have their own tables."""
    differences = rows("differences")
    return controls.precision_finding(rows("precision")), controls.size_finding(plan, rows("sizes"), differences)


def write_summary(settings: Path, measurements: Path, runs: Path, tables: Path, output: Path) -> None:
    """Write the first page of a campaign: README.md in its folder, and the front page of the HTML report.

    Args:
        runs: folder of all runs.
        tables: folder of the written tables, for their titles.
        output: README.md; front.rst is written beside it.
    """
    plan = load_plan(settings)

    def rows(kind: str) -> pd.DataFrame:
        return pd.read_parquet(measurements / f"{kind}.parquet")

    found = verdicts(plan, rows)
    timed = pd.concat([rows("reference"), rows("inference")])
    spent, where = summary.spent(plan, rows("costs")), summary.environment(plan, runs, timed)
    titles = {path.stem: path.read_text().splitlines()[0].removeprefix("# ") for path in sorted(tables.glob("*.md"))}
    text = summary.readme(plan, found, rows("controls"), _findings(plan, rows), spent, where, titles)
    write_bytes(output, text.encode())
    write_bytes(output.with_name("front.rst"), summary.front(plan, found, spent, where).encode())


def write_figure(name: str, settings: Path, measurements: Path, paper: Path, output: Path) -> None:
    """Write one figure as SVG and PNG, with a CSV of the drawn data."""
    # Importing Matplotlib takes a second, and tables do not need it.
    from soma.report.figures import comparisons, ensembles, fixed_size, gradients, sweeps

    plan, values = load_plan(settings), PaperValues(paper)

    def rows(kind: str) -> pd.DataFrame:
        return pd.read_parquet(measurements / f"{kind}.parquet")

    figures: dict[str, Callable[[], None]] = {
        "figure1": lambda: fixed_size.figure1(plan, values, rows("losses"), rows("costs"), rows("differences"), output),
        "figure4": lambda: comparisons.figure4(plan, values, rows("paired"), output),
        "figure5": lambda: gradients.figure5(plan, rows("reference"), output),
        "figure6": lambda: ensembles.figure6(plan, values, rows("serving"), rows("inference"), output),
        "figure7": lambda: sweeps.figure7(plan, values, rows("sweep"), output),
        "figure8": lambda: sweeps.figure8(plan, values, rows("sweep"), output),
        "figure9": lambda: comparisons.figure9(plan, values, rows("ablation"), output),
        "figure10": lambda: gradients.figure10(plan, values, rows("variance"), output),
        "figure11": lambda: gradients.figure11(plan, values, rows("objective"), output),
        "figure13": lambda: sweeps.figure13(plan, values, rows("sweep"), output),
        "figure14": lambda: sweeps.figure14(plan, rows("best-counts"), output),
        "figure15": lambda: ensembles.figure15(plan, values, rows("serving"), rows("inference"), rows("costs"), output),
        "figure16": lambda: ensembles.figure16(plan, values, rows("active-losses"), output),
        "figure17": lambda: ensembles.figure17(plan, values, rows("active"), output),
        "precision": lambda: gradients.precision(plan, rows("precision"), output),
        "sizes": lambda: fixed_size.sizes(plan, rows("sizes"), output),
        "estimators": lambda: comparisons.estimators(plan, rows("estimators"), output),
    }
    figures[name]()
