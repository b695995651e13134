"""The claims page: for C1 ... C16 what the paper says, what this campaign measured, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from soma.analysis.verdict import RULE, Difference, judge
from soma.plan import Plan
from soma.report.labels import watermark_notes
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


def claims_table(plan: Plan, measured: Mapping[str, Sequence[Difference]]) -> Table:
    """For every claim one row per difference; the verdict stands in the first.

    Args:
        measured: of `analysis.evidence.evidence`.
    """
    rows: list[tuple[Cell, ...]] = []
    for claim, statement in CLAIMS.items():
        differences = measured.get(claim, [])
        verdict, reason = judge(differences, plan.config.untestable.get(claim))
        runs = " ".join(dict.fromkeys(run for d in differences for run in d.run.split()))
        opening = (Cell(claim), Cell(statement), Cell(PAPER[claim], "paper"))
        ruling = (Cell(verdict, "measured" if differences else "not run", run=runs), Cell(reason))
        for i, difference in enumerate(differences):
            head, tail = (opening, ruling) if i == 0 else ((_EMPTY,) * 3, (_EMPTY,) * 2)
            rows.append((*head, *_difference_cells(difference), *tail))
        if not differences:
            rows.append((*opening, *[NOT_RUN] * 5, *ruling))
    columns = (
        "claim", "statement", "paper", "difference (the claim: negative)", "measured, 95 % over documents", "unit",
        "95 % over seeds", "speaks", "verdict", "why",
    )  # fmt: skip
    return Table("claims", "Claims", columns, tuple(rows), (RULE, *watermark_notes(plan)))


_EMPTY = Cell("")


def over_documents(difference: Difference, digits: int) -> str:
    """A difference, with its interval over documents if it has one."""
    interval = _interval(difference.low, difference.high, digits)
    return f"{difference.mean:+.{digits}f}" + (interval and f" {interval}")


def over_seeds(difference: Difference, digits: int) -> str:
    """The interval over seeds; empty if there are too few."""
    return _interval(difference.seed_low, difference.seed_high, digits)


def _interval(low: float, high: float, digits: int) -> str:
    return "" if math.isnan(low) else f"[{low:+.{digits}f}, {high:+.{digits}f}]"


def _difference_cells(d: Difference) -> tuple[Cell, ...]:
    low, high = (None if math.isnan(x) else x for x in (d.low, d.high))
    seeds = f"{over_seeds(d, 4)} ({d.seeds} seeds)" if d.seeds > 1 else f"{d.seeds} seed"
    return (
        Cell(d.name),
        Cell(over_documents(d, 4), "measured", d.mean, low, high, d.run),
        Cell(d.unit),
        Cell(seeds, "measured", d.seeds, run=d.run),
        Cell(d.side(), "measured", run=d.run),
    )
