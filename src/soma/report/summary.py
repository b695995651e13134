"""The first page of a campaign: what was reproduced, on one screen.

It is written as README.md for people who browse the folder, and as reStructuredText for the front page of the HTML
report; the README of the repository opens with the same content (report.pages).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from soma.analysis.verdict import RULE, Side
from soma.files.atomic import read_json
from soma.plan import Plan
from soma.report.claims import CLAIMS, PAPER, Judged
from soma.report.controls import QUESTIONS, control_cells
from soma.report.labels import difference_cells, hardware
from soma.report.table import significant

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
"""Marks around the content of the first screen."""
SHOWN = {
    "C1": ("table4", "figure1"),
    "C2": ("table9",),
    "C3": ("table7", "table6"),
    "C4": ("figure11",),
    "C5": ("figure4",),
    "C6": ("figure10",),
    "C7": ("table8", "figure5"),
    "C8": ("figure7", "figure8"),
    "C9": ("table12", "figure6"),
    "C10": ("figure16",),
    "C11": ("figure17",),
    "C12": ("ablation", "figure9"),
    "C13": ("figure11",),
    "C14": ("table11",),
    "C15": ("figure14", "table10"),
    "C16": ("table5",),
}
"""Tables and figures that show each claim."""
DECIDING: Mapping[str, Side] = {"not reproduced": "against", "inconclusive": "neither"}
"""Side of the differences that decide a verdict; for other verdicts, all differences do."""
COUNTED = ("reproduced", "not reproduced", "inconclusive", "not testable at this scale", "not run")


def _counts(found: Sequence[Judged]) -> str:
    """Count the verdicts, as in `3 reproduced, 1 inconclusive`."""
    names = [judged.verdict for judged in found]
    return ", ".join(f"{names.count(name)} {name}" for name in COUNTED if name in names)


def _claim_row(judged: Judged) -> tuple[str, ...]:
    links = ", ".join(_link(name) for name in SHOWN[judged.claim])
    opening = f"{judged.claim}: {CLAIMS[judged.claim]}"
    ruling = f"**{judged.verdict}**: {judged.reason}"
    if not judged.differences:
        return (opening, PAPER[judged.claim], "–", "–", "–", ruling, links)
    # Show a difference that decided the verdict.
    side = DECIDING.get(judged.verdict)
    shown = next((d for d in judged.differences if d.side() == side), judged.differences[0])
    more = len(judged.differences) - 1
    name = shown.name + ("" if shown.unit == "nats per byte" else f" ({shown.unit})")
    name += f"; [{more} more](tables/claims.md)" if more else ""
    return (opening, PAPER[judged.claim], name, *(cell.text for cell in difference_cells(shown, 3)), ruling, links)


def _control_row(plan: Plan, row: Any) -> tuple[str, ...]:
    ours, theirs, *cells, finding = (cell.text for cell in control_cells(plan, row, 3))
    return (f"{row.control}: {QUESTIONS[row.control]}", f"{ours} minus {theirs}", *cells, f"**{finding}**")


def _link(name: str) -> str:
    """Return a link to a table's page or a figure's picture."""
    title = name.capitalize().replace("Table", "Table ").replace("Figure", "Figure ")
    return f"[{title}](figures/{name}.png)" if name.startswith("figure") else f"[{title}](tables/{name}.md)"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def spent(plan: Plan, costs: pd.DataFrame) -> dict[str, float]:
    """Return the six cost quantities of the whole campaign, with their units in the names.

    Operations and device time are summed over all arms; elapsed times are of the longest run, since runs can be
    parallel.
    """
    end = costs[costs["update"] == costs.groupby("run")["update"].transform("max")]
    by_run = end.pivot_table(index="run", columns="quantity", values="value")
    seeds = {run.id for run in plan.runs.values() if run.kind == "seed"}
    from_seeds = by_run.index.isin([run.id for run in plan.runs.values() if run.start in seeds])  # not a continuation
    return {
        "arithmetic operations of all arms": float(by_run["arithmetic operations"].sum()),
        "aggregate device time of all arms (s)": float(by_run["aggregate device time"].sum()),
        "idealised elapsed time of the longest run (s)": float(by_run["idealised elapsed time"].max()),
        "actual elapsed time of the longest run (s)": float(by_run["actual elapsed time"].max()),
        f"initialisation, the longest of {len(seeds)} seed runs (s)": float(
            by_run.loc[from_seeds, "initialisation"].max()
        ),
        "preprocessing (s)": float(by_run["preprocessing"].max()),
    }


def environment(plan: Plan, runs: Path, timed: pd.DataFrame) -> dict[str, str]:
    """Describe the recorded machine and software of the training jobs, and the hardware of timed measurements.

    Args:
        timed: rows of the timed measurements.
    """
    records = [read_json(runs / folder / "run.json") for run in plan.runs.values() for folder in plan.folders(run)]

    def every(key: str) -> str:
        return ", ".join(sorted({str(record[key]) for record in records}))

    names = ("device", "threads", "engine", "python", "torch", "soma", "commit")
    jobs = {"training jobs": str(len(records)), "measurements of times": hardware(timed)}
    return {name: every(name) for name in names} | jobs


def readme(
    plan: Plan,
    found: Sequence[Judged],
    controls: pd.DataFrame,
    findings: Sequence[str],
    cost: Mapping[str, float],
    where: Mapping[str, str],
    tables: Mapping[str, str],
) -> str:
    """Return README.md of a campaign's folder, with the first screen between BEGIN and END.

    Args:
        controls: rows of `analysis.controls.differences`.
        findings: findings of the controls that have their own tables (report.controls).
        cost, where: results of `spent` and `environment`.
        tables: titles of tables by name.
    """
    folder = f"results/{plan.config.campaign}"
    lines = [f"# Campaign `{plan.config.campaign}`", "", BEGIN, "", *_opening(plan, found), ""]
    lines += ["![Test loss at equal total size](figures/figure1.png)", ""]
    head = ("claim", "paper", "here (negative is for the claim)", "difference [95 % over documents]", "95 % over seeds")
    lines += _markdown((*head, "verdict", "shown in"), map(_claim_row, found))
    lines += ["", "Controls that the paper did not run ([all](tables/controls.md)):", ""]
    lines += _markdown(
        ("control", "first minus second", "difference [95 % over documents]", "95 % over seeds", "finding"),
        (_control_row(plan, row) for row in controls.itertuples()),
    )
    lines += ["", *(f"- {finding}" for finding in findings), "", "`~`: interpolated between two milestones or sizes."]
    lines += ["", "What it cost, in six quantities that are never merged ([by arm](tables/costs.md)): "]
    lines[-1] += "; ".join(f"{name} {significant(value)}" for name, value in cost.items()) + "."
    lines += ["", f"Each is made again by `snakemake --cores all {folder}/tables/table4.md` and the like.", "", END, ""]
    lines += [RULE, "", "## Where it ran", "", *(f"- {name}: {value}" for name, value in where.items()), ""]
    lines += ["## Tables", "", "A value, its interval, status and runs for each cell stand in the CSV beside each.", ""]
    ordered = sorted(tables.items(), key=lambda table: (not table[0].startswith("table"), len(table[0]), table[0]))
    lines += [f"- [{title}](tables/{name}.md)" for name, title in ordered]
    lines += ["", "Figures, each with what it draws as CSV, are in [figures](figures/)."]
    return "\n".join(lines) + "\n"


def front(plan: Plan, found: Sequence[Judged], cost: Mapping[str, float], where: Mapping[str, str]) -> str:
    """Return the front page of the HTML report as reStructuredText."""
    lines = [f"What was reproduced: campaign {plan.config.campaign}", "=" * 60, "", *_opening(plan, found), ""]
    # Snakemake shows this page in a narrow column, so differences and reasons are left to the claims table.
    lines += [".. list-table::", "   :widths: 8 27 65", ""]
    for judged in found:
        lines += [f"   * - {judged.claim}", f"     - **{judged.verdict}**", f"     - {_escape(CLAIMS[judged.claim])}"]
    lines += [
        "",
        "*1 What was reproduced* in the menu has every difference, with its interval and the rule; the rest follows",
    ]
    lines += ["in the paper's order. Point at a number to see its run.", ""]
    lines += ["What it cost, in six quantities that are never merged:", ""]
    lines += [f"- {name}: {significant(value)}" for name, value in cost.items()]
    lines += ["", "Where it ran:", "", *(f"- {name}: {_escape(str(value))}" for name, value in where.items())]
    return "\n".join([*lines, ""])


def _opening(plan: Plan, found: Sequence[Judged]) -> list[str]:
    run = plan.arm_runs[plan.config.products.fixed_size.soma][0]
    size = f"{run.parameters:,} parameters and {significant(float(run.operations(run.updates)))} operations for an arm"
    lines = [f"Of {len(found)} claims of the paper: {_counts(found)}. The comparison has {size}."]
    if plan.config.watermark:
        lines += ["", f"{plan.config.watermark.upper()}: the size of this run supports no conclusion."]
    return lines


def _escape(text: str) -> str:
    """Escape reStructuredText markup."""
    return text.replace("\\", "\\\\").replace("*", "\\*").replace("`", "\\`").replace("|", "\\|").replace("_", "\\_")
