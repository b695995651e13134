"""Steps from rows to tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from soma.analysis.evidence import evidence
from soma.manifest import read_json
from soma.report import comparisons, measured, tables
from soma.report.claims import claims_table
from soma.report.clusters import clusters_table
from soma.report.paper import PaperValues
from soma.report.table import Table
from soma.steps.summarise import load_plan


def write_table(
    name: str, settings: Path, measurements: Path, sets: Path, routing: Path, paper: Path, output: Path
) -> None:
    """One table as Markdown, CSV and HTML."""
    plan, values = load_plan(settings), PaperValues(paper)

    def rows(kind: str) -> pd.DataFrame:
        return pd.read_parquet(measurements / f"{kind}.parquet")

    def set_facts() -> Mapping[str, Any]:
        return {role: read_json(sets / f"{role}.json") for role in ("validation", "test")}

    products: dict[str, Callable[[], Table]] = {
        "claims": lambda: claims_table(plan, evidence(plan, rows)),
        "controls": lambda: comparisons.controls_table(plan, rows("controls")),
        "sizes": lambda: measured.sizes_table(plan, rows("sizes")),
        "estimators": lambda: comparisons.estimators_table(plan, rows("estimators")),
        "precision": lambda: measured.precision_table(plan, rows("precision")),
        "table1": lambda: tables.table1(plan, values, set_facts()),
        "table2": lambda: tables.table2(plan, values),
        "table3": lambda: tables.table3(plan, values, rows("costs"), rows("reference")),
        "table4": lambda: tables.table4(plan, values, rows("losses")),
        "table5": lambda: comparisons.table5(plan, values, rows("backpropagation")),
        "table6": lambda: comparisons.table6(plan, values, rows("tuning")),
        "table7": lambda: comparisons.table7(plan, values, rows("tuning-compared")),
        "table8": lambda: measured.table8(plan, values, rows("reference")),
        "table9": lambda: tables.table9(plan, values, rows("losses")),
        "table10": lambda: measured.table10(plan, values, rows("budgets")),
        "table11": lambda: comparisons.table11(plan, values, rows("allocation")),
        "table12": lambda: measured.table12(plan, values, rows("inference")),
        "table13": lambda: measured.table13(plan, values, rows("serving"), rows("inference"), rows("costs")),
        "ablation": lambda: comparisons.ablation_table(plan, values, rows("ablation")),
        "populations": lambda: comparisons.populations_table(plan, rows("populations")),
        "costs": lambda: tables.costs_table(plan, rows("costs")),
        "clusters": lambda: clusters_table(plan, [read_json(p) for p in sorted(routing.glob("clusters-n*.json"))]),
    }
    products[name]().write(output)


def write_figure(name: str, settings: Path, measurements: Path, output: Path) -> None:
    """One figure as SVG and PNG, with the CSV of what it draws."""
    from soma.report.figures import figure1, precision  # matplotlib takes a second to import; tables need none

    plan = load_plan(settings)

    def rows(kind: str) -> pd.DataFrame:
        return pd.read_parquet(measurements / f"{kind}.parquet")

    figures: dict[str, Callable[[], None]] = {
        "figure1": lambda: figure1(plan, rows("losses"), rows("costs"), output),
        "precision": lambda: precision(plan, rows("precision"), output),
    }
    figures[name]()
