"""The claims page: for C1 ... C16, the paper's statement, this campaign's measurements, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from soma.analysis.evidence import Rows, evidence
from soma.analysis.verdict import RULE, Difference, judge
from soma.plan import Plan
from soma.report.labels import difference_cells, named, watermark_notes
from soma.report.measured import agreement
from soma.report.paper import PaperValues
from soma.report.table import NOT_RUN, Cell, Table

CLAIMS = {
    "C1": "At equal budget and total size SOMA N=2 has lower test loss than monolithic SPSA and EGGROLL.",
    "C2": "The same frozen checkpoints keep that order on an external corpus.",
    "C3": "With equal tuning SOMA N=2 wins in every seed.",
    "C4": "On a separable objective independent losses have 1/N of the summed loss's relative gradient variance.",
    "C5": "Independent losses lower test loss more than summed losses at equal compute; the gain shrinks late.",
    "C6": "Relative gradient variance at fixed total size falls with N and as 1/n_pert.",
    "C7": "More shards lower the gradient error per device-second; more directions help, larger batches hardly.",
    "C8": "At fixed expert width loss falls with N, n_pert and B, but not at every aggregate budget.",
    "C9": "At equal total size N=256 infers much faster than N=8 at slightly lower loss, for far more training.",
    "C10": "k=4 active experts catch most of the gain of averaging.",
    "C11": "Averaging a pair of experts helps more when their errors are less similar.",
    "C12": "Semantic clusters beat random shards and global IID; warm start and a trained head help (BPTT).",
    "C13": "The optimal split of a fixed n_pert B is B* = sqrt(K nu / (d - 1)).",
    "C14": "Equal-compute continuations with different (n_pert, B) end within 0.00006 of each other.",
    "C15": "Under a budget per expert more shards can be best.",
    "C16": "Backpropagation is far better at every budget.",
}
PAPER = {
    "C1": "1.76 against 2.00, 2.11, 2.00, 2.21",
    "C2": "2.07 against 2.25, 2.36, 2.29, 2.49",
    "C3": "mean difference 0.0396, 3 of 3 seeds",
    "C4": "4.02 times at N=4, predicted 4.00",
    "C5": "0.035 after 1,000 updates, 0.0003 late",
    "C6": "118 times from N=1 to N=256",
    "C7": "N=256 99.5 % below the monolith; n_pert -94 %, B -47 %",
    "C8": "N=1 to 256: 1.86 to 1.72 at 4M updates",
    "C9": "9.19 times faster, 1.68 against 1.71, 59.9 times the compute",
    "C10": "0.013 from k=4 to k=12 at N=256",
    "C11": "mean gain 0.083 over all pairs",
    "C12": "decoder-only head costs 0.029",
    "C13": "minima at B=2, 2, 4 for 2.04, 2.89, 4.09",
    "C14": "2.376587, 2.376575, 2.376625",
    "C15": "a map of best N over two budgets",
    "C16": "1.0091, 1.0535, 1.1776 against 2.0343, 1.8257, 2.0179",
}


@dataclass(frozen=True)
class Judged:
    """A claim with its measured differences, and the verdict with its reason."""

    claim: str
    differences: Sequence[Difference]
    verdict: str
    reason: str


def verdicts(plan: Plan, rows: Rows) -> list[Judged]:
    """Judge every claim, from measurements and summaries by name."""
    measured, found = evidence(plan, rows), []
    for claim in CLAIMS:
        differences = [replace(d, name=named(plan, d.name)) for d in measured[claim]]
        found.append(Judged(claim, differences, *judge(differences, plan.config.untestable.get(claim))))
    return found


def claims_table(plan: Plan, paper: PaperValues, found: Sequence[Judged], references: pd.DataFrame) -> Table:
    """Build the claims table, with one row per difference of every claim; `″` means as above.

    Args:
        references: rows of the reference measurement, for the check that C7 depends on.
    """
    rows: list[tuple[Cell, ...]] = []
    for judged in found:
        runs = " ".join(dict.fromkeys(run for d in judged.differences for run in d.run.split()))
        claim = Cell(judged.claim)
        ruling = Cell(judged.verdict, "measured" if judged.differences else "not run", judged.verdict, run=runs)
        opening, reason = (Cell(CLAIMS[judged.claim]), Cell(PAPER[judged.claim], "paper")), Cell(judged.reason)
        for i, d in enumerate(judged.differences):
            value, seeds = difference_cells(d)
            side = Cell(d.side(), "measured", d.side(), run=d.run)
            texts = (*opening, reason) if i == 0 else (_DITTO, replace(_DITTO, status="paper"), _DITTO)
            rows.append((claim, *texts[:2], Cell(d.name), value, Cell(d.unit), seeds, side, ruling, texts[2]))
        if not judged.differences:
            rows.append((claim, *opening, *[NOT_RUN] * 5, ruling, reason))
    columns = (
        "claim", "statement", "paper", "difference (the claim: negative)", "measured, 95 % over documents", "unit",
        "95 % over seeds", "speaks", "verdict", "why",
    )  # fmt: skip
    notes = (RULE, f"C7: {agreement(references)}", *_more(paper), *watermark_notes(plan))
    return Table("claims", "Claims", columns, tuple(rows), notes)


_DITTO = Cell("″")


def _more(paper: PaperValues) -> tuple[str, ...]:
    """Return further numbers that the paper reports about the claims, as sentences."""
    early, late = (paper.tables["figure4"][phase] for phase in ("early", "late"))
    ratios = " and ".join("{} to {}".format(*f) for f in (early["variance_factor_fp64"], late["variance_factor"]))
    sweep, active, budgets = (paper.tables[name] for name in ("figure7", "figure16", "figure14"))
    elapsed, updates, n_pert = (sweep[k] for k in ("n_sweep_validation", "n_sweep_at_4M_updates", "n8_npert64_to_1024"))
    hours, many, few = n_pert["gpu_hours"], budgets["n256"], budgets["n2"]
    return (
        f"More of the paper. C4: in training, N=4 (Figure 4), the variance ratio is {ratios}, early and late.",
        f"C8 (Figure 7): validation {elapsed['n1']} at N=1 and {elapsed['n256']} at N=256 after "
        f"{elapsed['cutoff_hours']} hours, {updates['n1']} and {updates['n256']} after 4M updates; N=8 with n_pert=64 "
        f"{n_pert['npert64']} for {hours['npert64']:,} GPU-hours, with 1,024 {n_pert['npert1024']} for "
        f"{hours['npert1024']:,}.",
        f"C10 (Figure 16): with k=4 {active['n256_k4']} at N=256 and {active['n8_k4']} at N=8.",
        f"C15 (Figure 14): {many['validation']} at N=256 for {many['elapsed_hours']} hours elapsed and "
        f"{many['gpu_hours']:,} GPU-hours, {few['validation']} at N=2 for {few['elapsed_hours']} hours and "
        f"{few['gpu_hours']} GPU-hours.",
    )
