"""The first page of a campaign: what was reproduced, in one screen. As README.md for people who browse the folder, and
as reStructuredText for the front of the HTML report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from soma.analysis.verdict import RULE, Difference, judge
from soma.manifest import read_json
from soma.plan import Plan
from soma.report.claims import CLAIMS, PAPER
from soma.report.table import significant

COUNTED = ("reproduced", "not reproduced", "inconclusive", "not testable at this scale", "not run")


@dataclass(frozen=True)
class Verdicts:
    """Claim, statement, the paper's value, the first difference measured, and the verdict with its reason."""

    rows: tuple[tuple[str, str, str, str, str, str], ...]

    def counts(self) -> str:
        """`3 reproduced, 1 inconclusive`."""
        found = [row[4] for row in self.rows]
        return ", ".join(f"{found.count(name)} {name}" for name in COUNTED if name in found)


def verdicts(plan: Plan, measured: Mapping[str, Sequence[Difference]]) -> Verdicts:
    """One row per claim."""
    rows = []
    for claim, statement in CLAIMS.items():
        differences = measured.get(claim, [])
        verdict, reason = judge(differences, plan.config.untestable.get(claim))
        rows.append((claim, statement, PAPER[claim], _measured(differences), verdict, reason))
    return Verdicts(tuple(rows))


def _measured(differences: Sequence[Difference]) -> str:
    if not differences:
        return "–"
    d = differences[0]
    more = f" (and {len(differences) - 1} more)" if len(differences) > 1 else ""
    seeds = f"{d.seeds} seed" + ("s" if d.seeds != 1 else "")
    return f"{d.name}: {d.mean:+.3f}, {seeds}{more}"


def spent(plan: Plan, costs: pd.DataFrame) -> dict[str, float]:
    """The six cost quantities of the whole campaign, with their units in the names.

    Operations and times of all arms added up; the elapsed times are of the longest run, since runs can go at once.
    """
    end = costs[costs["update"] == costs.groupby("run")["update"].transform("max")]
    by_run = end.pivot_table(index="run", columns="quantity", values="value")
    seeds = [run for run in plan.runs.values() if run.kind == "seed"]
    return {
        "arithmetic operations of all arms": float(by_run["arithmetic operations"].sum()),
        "aggregate device time of all arms (s)": float(by_run["aggregate device time"].sum()),
        "idealised elapsed time of the longest run (s)": float(by_run["idealised elapsed time"].max()),
        "actual elapsed time of the longest run (s)": float(by_run["actual elapsed time"].max()),
        f"initialisation, the longest of {len(seeds)} seed runs (s)": float(by_run["initialisation"].max()),
        "preprocessing (s)": float(by_run["preprocessing"].max()),
    }


def environment(plan: Plan, runs: Path) -> dict[str, str]:
    """Machine and software of the training jobs, as their records say."""
    records = [read_json(runs / folder / "run.json") for run in plan.runs.values() for folder in plan.folders(run)]

    def every(key: str) -> str:
        return ", ".join(sorted({str(record[key]) for record in records}))

    names = ("device", "threads", "engine", "python", "torch", "soma", "commit")
    return {name: every(name) for name in names} | {"training jobs": str(len(records))}


def readme(
    plan: Plan, found: Verdicts, cost: Mapping[str, float], where: Mapping[str, str], tables: Mapping[str, str]
) -> str:
    """README.md of a campaign's folder.

    Args:
        cost, where: of `spent` and `environment`.
        tables: titles by name.
    """
    lines = [f"# Campaign `{plan.config.campaign}`", "", *_opening(plan, found), ""]
    lines += ["| claim | says | paper | here (first difference; negative is for the claim) | verdict | why |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    lines += ["| " + " | ".join((row[0], row[1], row[2], row[3], f"**{row[4]}**", row[5])) + " |" for row in found.rows]
    lines += ["", f"All differences, with their intervals: [claims](tables/claims.md). {RULE}", ""]
    lines += ["![Test loss at equal total size](figures/figure1.png)", "", "## What it cost", ""]
    lines += [f"- {name}: {significant(value)}" for name, value in cost.items()]
    lines += ["", "The six quantities are never merged; [costs](tables/costs.md) has them for every arm.", ""]
    lines += ["## Where it ran", "", *(f"- {name}: {value}" for name, value in where.items()), ""]
    lines += ["## Tables", "", "A value, its interval, status and runs for each cell stand in the CSV beside each.", ""]
    ordered = sorted(tables.items(), key=lambda table: (not table[0].startswith("table"), len(table[0]), table[0]))
    lines += [f"- [{title}](tables/{name}.md)" for name, title in ordered]
    lines += ["", "Figures, each with what it draws as CSV, are in [figures](figures/)."]
    return "\n".join(lines) + "\n"


def front(plan: Plan, found: Verdicts, cost: Mapping[str, float], where: Mapping[str, str]) -> str:
    """The front page of the HTML report, reStructuredText."""
    lines = [f"What was reproduced: campaign {plan.config.campaign}", "=" * 60, "", *_opening(plan, found), ""]
    # Snakemake's page gives it a narrow column: what is measured, and why, stands in the claims table.
    lines += [".. list-table::", "   :widths: 8 27 65", ""]
    for claim, statement, _, _, verdict, _ in found.rows:
        lines += [f"   * - {claim}", f"     - **{verdict}**", f"     - {_escape(statement)}"]
    lines += [
        "",
        "*1 What was reproduced* in the menu has every difference, with its interval and the rule; the rest follows",
    ]
    lines += ["in the paper's order. Point at a number to see its run.", ""]
    lines += ["What it cost, in six quantities that are never merged:", ""]
    lines += [f"- {name}: {significant(value)}" for name, value in cost.items()]
    lines += ["", "Where it ran:", "", *(f"- {name}: {_escape(str(value))}" for name, value in where.items())]
    return "\n".join([*lines, ""])


def _opening(plan: Plan, found: Verdicts) -> list[str]:
    run = plan.arm_runs[plan.config.products.fixed_size.soma][0]
    size = f"{run.parameters:,} parameters and {significant(float(run.operations(run.updates)))} operations for an arm"
    lines = [f"Of {len(found.rows)} claims of the paper: {found.counts()}. The comparison has {size}."]
    if plan.config.watermark:
        lines += ["", f"{plan.config.watermark.upper()}: the size of this run supports no conclusion."]
    return lines


def _escape(text: str) -> str:
    """Text without reStructuredText's marks."""
    return text.replace("\\", "\\\\").replace("*", "\\*").replace("`", "\\`").replace("|", "\\|").replace("_", "\\_")
