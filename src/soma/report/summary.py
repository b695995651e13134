"""The first page of a campaign: what was reproduced, on one screen.

It is written as README.md for people who browse the folder, and as reStructuredText for the front page of the HTML
report; the README of the repository opens with the same content (report.pages).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from soma.analysis.claims import Judged, counted
from soma.analysis.verdict import LOSS, RULE, Support
from soma.catalogue import CONTROLS, FIGURES, TABLES, Claim
from soma.files.atomic import read_json
from soma.plan import Plan
from soma.report.labels import difference_cells, hardware, named
from soma.report.paper import PaperValues
from soma.report.table import significant
from soma.report.tables.controls import control_cells

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
"""Marks around the content of the first screen."""
DECIDING: Mapping[str, Support] = {"not reproduced": "against", "inconclusive": "neither"}
"""Support that the deciding differences of a verdict give; for other verdicts, all differences decide."""


def _claim_row(plan: Plan, paper: PaperValues, claim: Claim, judged: Judged) -> tuple[str, ...]:
    links = ", ".join(_link(name) for name in claim.shown)
    opening, reported = f"{claim.name}: {paper.text(claim.text)}", paper.text(claim.paper)
    ruling = f"**{judged.verdict}**{_mark(judged)}: {judged.reason}"
    if not judged.differences:
        return (opening, reported, "–", "–", "–", ruling, links)
    # Show a difference that decided the verdict.
    support = DECIDING.get(judged.verdict)
    shown = next((d for d in judged.differences if d.support() == support), judged.differences[0])
    more = len(judged.differences) - 1
    name = named(plan, shown.name) + ("" if shown.unit == LOSS else f" ({shown.unit})")
    name += f"; [{more} more](tables/claims.md)" if more else ""
    return (opening, reported, name, *(cell.text for cell in difference_cells(shown, 3)), ruling, links)


def _mark(judged: Judged) -> str:
    return ", *superseded*" if judged.superseded else ""


def _control_row(plan: Plan, row: Any) -> tuple[str, ...]:
    ours, theirs, *cells, finding = (cell.text for cell in control_cells(plan, row, 3))
    return (f"{row.control}: {CONTROLS[row.control]}", f"{ours} minus {theirs}", *cells, f"**{finding}**")


def _link(name: str) -> str:
    """Return a link to a table's page or a figure's picture; the name of a table comes first."""
    if name in TABLES:
        return f"[{TABLES[name].label}](tables/{name}.md)"
    return f"[{FIGURES[name].label}](figures/{name}.png)"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def environment(plan: Plan, runs: Path, timed: Iterable[pd.DataFrame | None]) -> dict[str, str]:
    """Describe the recorded machine and software of the training jobs, and the hardware of timed measurements.

    Args:
        timed: rows of the timed measurements; None for those that the campaign does not have.
    """
    records = [read_json(runs / folder / "run.json") for run in plan.runs.values() for folder in plan.folders(run)]

    def every(key: str) -> str:
        return ", ".join(sorted({str(record[key]) for record in records}))

    names = ("device", "threads", "engine", "python", "torch", "soma", "commit")
    rows = [each for each in timed if each is not None]
    jobs = {"training jobs": str(len(records)), "measurements of times": hardware(pd.concat(rows)) if rows else "none"}
    return {name: every(name) for name in names} | jobs


def readme(
    plan: Plan,
    paper: PaperValues,
    judged_claims: Sequence[Judged],
    controls: pd.DataFrame | None,
    findings: Sequence[str],
    cost: Mapping[str, float],
    where: Mapping[str, str],
) -> str:
    """Return README.md of a campaign's folder, with the first screen between BEGIN and END.

    Args:
        controls: rows of `analysis.controls.differences`, if the campaign has them.
        findings: findings of the controls that have their own tables (report.controls).
        cost, where: results of `costs.campaign_totals` and `environment`.
    """
    folder = f"results/{plan.config.campaign}"
    lines = [f"# Campaign `{plan.config.campaign}`", "", BEGIN, "", *_opening(plan, judged_claims), ""]
    lines += ["![Test loss at equal total size](figures/figure1.png)", ""]
    head = ("claim", "paper", "here (negative is for the claim)", "difference [over documents]", "[over seeds]")
    claims = plan.config.catalogue.claims
    rows = [_claim_row(plan, paper, claim, judged) for claim, judged in zip(claims, judged_claims, strict=True)]
    lines += _markdown((*head, "verdict", "shown in"), rows)
    if controls is not None:
        lines += ["", "Controls that the paper did not run ([all](tables/controls.md)):", ""]
        lines += _markdown(
            ("control", "first minus second", "difference [95 % over documents]", "95 % over seeds", "finding"),
            (_control_row(plan, row) for row in controls[controls["control"] != "B7"].itertuples()),
        )
    lines += ["", *(f"- {finding}" for finding in findings), ""]
    lines += ["Intervals of claims hold together within a claim (Holm), others are 95 % intervals of their own. "]
    lines[-1] += "`~`: interpolated between two milestones or sizes."
    if any(judged.superseded for judged in judged_claims):
        lines[-1] += (
            " *Superseded*: the claim asks for rates that a search on ensemble validation chose for all compared arms, "
            "or for a measurement that has another definition now ([which](tables/claims.md), "
            "[rates](tables/rates-of-arms.md))."
        )
    lines += ["", "What it cost, in six quantities that are never merged ([by arm](tables/costs.md)): "]
    lines[-1] += "; ".join(f"{name} {significant(value)}" for name, value in cost.items()) + "."
    lines += [
        "",
        f"Regenerate any table or figure, for example: `snakemake --cores all {folder}/tables/table4.md`.",
        "",
        END,
        "",
    ]
    lines += [RULE, "", "## Where it ran", "", *(f"- {name}: {value}" for name, value in where.items()), ""]
    lines += ["## Tables", "", "The CSV file beside each table has every cell's value, interval, status and runs.", ""]
    ordered = sorted(plan.config.catalogue.tables, key=lambda name: (not name.startswith("table"), len(name), name))
    lines += [f"- [{TABLES[name].title}](tables/{name}.md)" for name in ordered]
    lines += ["", "## Figures", "", "The CSV file beside each figure has its data.", ""]
    lines += [f"- [{figure.title}](figures/{figure.name}.png)" for figure in plan.config.catalogue.figures.values()]
    return "\n".join(lines) + "\n"


def front(
    plan: Plan,
    paper: PaperValues,
    judged_claims: Sequence[Judged],
    cost: Mapping[str, float],
    where: Mapping[str, str],
) -> str:
    """Return the front page of the HTML report as reStructuredText."""
    lines = [f"What was reproduced: campaign {plan.config.campaign}", "=" * 60, "", *_opening(plan, judged_claims), ""]
    # Snakemake shows this page in a narrow column, so differences and reasons are left to the claims table.
    lines += [".. list-table::", "   :widths: 8 27 65", ""]
    for claim, judged in zip(plan.config.catalogue.claims, judged_claims, strict=True):
        text = _escape(paper.text(claim.text))
        lines += [f"   * - {claim.name}", f"     - **{judged.verdict}**{_mark(judged)}", f"     - {text}"]
    lines += [
        "",
        "*1 What was reproduced* in the menu has every difference, with its interval and the rule; the rest follows",
    ]
    lines += ["in the paper's order. Point at a number to see its run.", ""]
    lines += ["What it cost, in six quantities that are never merged:", ""]
    lines += [f"- {name}: {significant(value)}" for name, value in cost.items()]
    lines += ["", "Where it ran:", "", *(f"- {name}: {_escape(str(value))}" for name, value in where.items())]
    return "\n".join([*lines, ""])


def _opening(plan: Plan, judged_claims: Sequence[Judged]) -> list[str]:
    run = plan.arm_runs[plan.config.products.fixed_size.soma][0]
    size = f"{run.parameters:,} parameters and {significant(float(run.operations(run.updates)))} operations for an arm"
    claims = len({re.sub("[a-z]$", "", judged.claim) for judged in judged_claims})
    lines = [
        f"The paper makes {claims} claims, which are judged in {len(judged_claims)} parts: {counted(judged_claims)}. "
        f"The comparison has {size}."
    ]
    if plan.config.watermark:
        lines += ["", f"{plan.config.watermark.upper()}: the size of this run supports no conclusion."]
    return lines


def _escape(text: str) -> str:
    """Escape reStructuredText markup."""
    return text.replace("\\", "\\\\").replace("*", "\\*").replace("`", "\\`").replace("|", "\\|").replace("_", "\\_")
