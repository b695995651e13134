"""The claims table: the paper's statement, this campaign's measurements, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from soma.analysis.claims import Judged
from soma.analysis.verdict import LOSS, RULE
from soma.plan import Plan
from soma.report.labels import (
    agreement,
    difference_cells,
    named,
    watermark_notes,
)
from soma.report.paper import PaperValues
from soma.report.table import DITTO, NOT_RUN, Cell, Status, Table


def claims(plan: Plan, paper: PaperValues, judged_claims: Sequence[Judged], references: pd.DataFrame | None) -> Table:
    """Build the claims table, with one row per difference of every claim; `″` means as above.

    Args:
        judged_claims: every claim with its verdict.
        references: rows of the reference measurement, for the check that C7 depends on, if the campaign has it.
    """
    rows: list[tuple[Cell, ...]] = []
    for entry, judged in zip(plan.config.catalogue.claims, judged_claims, strict=True):
        runs = " ".join(dict.fromkeys(run for d in judged.differences for run in d.run.split()))
        status: Status = "measured" if judged.differences else "not run"
        ruling = Cell(f"{judged.status}: {judged.reason}", status, judged.verdict, run=runs)
        opening = (Cell(judged.claim), Cell(paper.text(entry.text)), Cell(paper.text(entry.paper), "paper"))
        for i, d in enumerate(judged.differences):
            value, seeds = difference_cells(d)
            name = named(plan, d.name) + ("" if d.unit == LOSS else f" ({d.unit})")
            support = Cell(d.support(), "measured", d.support(), run=d.run)
            texts = opening if i == 0 else (opening[0], _DITTO, replace(_DITTO, status="paper"))
            tests = Cell("theory" if d.theory else "training")
            rows.append((*texts, Cell(name), value, seeds, tests, support, ruling if i == 0 else _DITTO))
        if not judged.differences:
            rows.append((*opening, *[NOT_RUN] * 5, ruling))
    columns = (
        "claim", "statement", "paper", "difference (the claim: negative)", "measured [over documents]", "[over seeds]",
        "tests", "speaks", "verdict",
    )  # fmt: skip
    superseded = [
        f"{judged.claim} is superseded: {named(plan, judged.superseded)}."
        for judged in judged_claims
        if judged.superseded
    ]
    agreed = [] if references is None else [f"C7: {agreement(references)}"]
    notes = (RULE, *superseded, *agreed, *_more(plan, paper), *watermark_notes(plan))
    return Table(columns, tuple(rows), notes)


_DITTO = Cell(DITTO)


def _more(plan: Plan, paper: PaperValues) -> tuple[str, ...]:
    """Return further numbers that the paper reports about the claims that are judged, as sentences."""
    early, late = (paper.tables["figure4"][phase] for phase in ("early", "late"))
    ratios = " and ".join("{} to {}".format(*f) for f in (early["variance_factor_fp64"], late["variance_factor"]))
    sweep, active, budgets = (paper.tables[name] for name in ("figure7", "figure16", "figure14"))
    elapsed, updates, n_pert = (sweep[k] for k in ("n_sweep_validation", "n_sweep_at_4M_updates", "n8_npert64_to_1024"))
    hours, many, few = n_pert["gpu_hours"], budgets["n256"], budgets["n2"]
    sentences = {
        "C4": f"in training, N=4 (Figure 4), the variance ratio is {ratios}, early and late.",
        "C8": f"validation (Figure 7) is {elapsed['n1']} at N=1 and {elapsed['n256']} at N=256 after "
        f"{elapsed['cutoff_hours']} hours, {updates['n1']} and {updates['n256']} after 4M updates; N=8 with n_pert=64 "
        f"{n_pert['npert64']} for {hours['npert64']:,} GPU-hours, with 1,024 {n_pert['npert1024']} for "
        f"{hours['npert1024']:,}.",
        "C10": f"with k=4 (Figure 16) {active['n256_k4']} at N=256 and {active['n8_k4']} at N=8.",
        "C15": f"{many['validation']} at N=256 (Figure 14) for {many['elapsed_hours']} hours elapsed and "
        f"{many['gpu_hours']:,} GPU-hours, {few['validation']} at N=2 for {few['elapsed_hours']} hours and "
        f"{few['gpu_hours']} GPU-hours.",
    }
    judged = {claim.name for claim in plan.config.catalogue.claims}
    return tuple(f"More of the paper on {claim}: {text}" for claim, text in sentences.items() if claim in judged)
