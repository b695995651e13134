"""Steps from evaluation rows to tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from soma.analysis import backpropagation, tuning
from soma.analysis.costs import run_costs
from soma.analysis.fixed_size import summarise
from soma.config import Config
from soma.manifest import atomic_path, read_json
from soma.plan import Plan, make_plan
from soma.report.claims import claims_table
from soma.report.clusters import clusters_table
from soma.report.paper import PaperValues
from soma.report.table import Table
from soma.report.tables import costs_table, precision_table, table1, table2, table4, table5, table6, table7, table9


def load_plan(settings: Path) -> Plan:
    return make_plan(Config.model_validate(read_json(settings)))


def summarise_losses(settings: Path, evaluations: Sequence[Path], losses: Path, differences: Path) -> None:
    """Losses with intervals and differences between arms, from per-document rows."""
    rows = pd.concat([pd.read_parquet(path) for path in evaluations], ignore_index=True)
    for frame, path in zip(summarise(load_plan(settings), rows), (losses, differences), strict=True):
        with atomic_path(path) as temporary:
            frame.to_parquet(temporary, index=False)


def summarise_backpropagation(settings: Path, evaluations: Sequence[Path], output: Path) -> None:
    """Zeroth-order arms against backpropagation at equal operations."""
    rows = pd.concat([pd.read_parquet(path) for path in evaluations], ignore_index=True)
    with atomic_path(output) as path:
        backpropagation.summarise(load_plan(settings), rows).to_parquet(path, index=False)


def search_settings(settings: Path, evaluations: Sequence[Path], output: Path) -> None:
    """What the tuning found on ensemble validation, and what it chose."""
    rows = pd.concat([pd.read_parquet(path) for path in evaluations], ignore_index=True)
    with atomic_path(output) as path:
        tuning.search(load_plan(settings), rows).to_parquet(path, index=False)


def summarise_costs(settings: Path, parts: Sequence[Path], benchmarks: Sequence[Path], output: Path) -> None:
    """The six cost quantities of every run.

    Args:
        parts: folders `run/part`.
        benchmarks: Snakemake's benchmark files of the preprocessing rules.
    """
    records: dict[str, dict[str, Any]] = {}
    for part in parts:
        records.setdefault(part.parent.name, {})[part.name] = read_json(part / "cost.json")
    seconds = sum(float(pd.read_csv(path, sep="\t")["s"].sum()) for path in benchmarks)
    with atomic_path(output) as path:
        run_costs(load_plan(settings), records, seconds).to_parquet(path, index=False)


def write_table(
    name: str, settings: Path, measurements: Path, sets: Path, routing: Path, paper: Path, output: Path
) -> None:
    """One table as Markdown, CSV and HTML."""
    plan, values = load_plan(settings), PaperValues(paper)

    def rows(kind: str) -> pd.DataFrame:
        return pd.read_parquet(measurements / f"{kind}.parquet")

    def set_facts() -> Mapping[str, Any]:
        return {role: read_json(sets / f"{role}.json") for role in ("validation", "test")}

    def tuned() -> pd.DataFrame:
        return tuning.compare(plan, rows("tuning"), rows("tuning-test"))

    tables: dict[str, Callable[[], Table]] = {
        "table1": lambda: table1(plan, values, set_facts()),
        "table2": lambda: table2(plan, values),
        "table4": lambda: table4(plan, values, rows("losses")),
        "table9": lambda: table9(plan, values, rows("losses")),
        "table5": lambda: table5(plan, values, rows("backpropagation")),
        "table6": lambda: table6(plan, values, rows("tuning")),
        "table7": lambda: table7(plan, values, tuned()),
        "costs": lambda: costs_table(plan, rows("costs")),
        "claims": lambda: claims_table(plan, rows("differences"), rows("backpropagation"), tuned()),
        "precision": lambda: precision_table(plan, rows("precision")),
        "clusters": lambda: clusters_table(plan, [read_json(p) for p in sorted(routing.glob("clusters-n*.json"))]),
    }
    tables[name]().write(output)


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
