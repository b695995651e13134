"""The jobs that make products of the toy campaign anew, by rule, as the catalogue says."""

from __future__ import annotations

from collections.abc import Collection

from soma.catalogue import (
    CLAIMS,
    FIGURES,
    FRONT,
    METRICS,
    PAGE,
    RATES,
    SUMMARIES,
    TABLES,
    Losses,
    Read,
    Verdicts,
    rows_of,
)

PRODUCTS = {"summarise": len(SUMMARIES), "summarise_costs": 1, "summary": 1, "metrics": 1, "page": 1}
PRODUCTS |= {"table": len(TABLES), "figure": len(FIGURES)}
"""All of them."""
EVALUATED = {p for s in SUMMARIES.values() for r in s.reads if isinstance(r, Losses) for p in r.products}
"""Products of the configuration whose arms are evaluated."""


def remade(*changed: str, losses: Collection[str] = ()) -> dict[str, int]:
    """Count the jobs that follow from changed rows, or from losses of the arms of products."""
    names = set(changed)

    def touched(reads: tuple[Read, ...]) -> bool:
        read = rows_of(reads) | {name for r in reads for name in _judged(r)}
        return bool(names & read) or any(isinstance(r, Losses) and set(losses) & set(r.products) for r in reads)

    while more := {name for name, summary in SUMMARIES.items() if name not in names and touched(summary.reads)}:
        names |= more
    tables = sum(touched(table.reads) for table in TABLES.values())
    figures = {name for name, figure in FIGURES.items() if touched(figure.reads)}
    jobs = {"summarise": len(names & SUMMARIES.keys()), "table": tables, "figure": len(figures)}
    jobs |= {"metrics": int(touched(METRICS)), "summary": int(touched(FRONT) or "figure1" in figures)}
    jobs["page"] = int(bool(tables or figures) or touched(PAGE))
    return {rule: count for rule, count in jobs.items() if count}


def _judged(read: Read) -> list[str]:
    return [*(name for claim in CLAIMS for name in claim.reads), RATES] if isinstance(read, Verdicts) else []
