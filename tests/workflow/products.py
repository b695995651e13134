"""The jobs that make all products anew from the toy campaign's evaluation."""

from soma.catalogue import FIGURES, SUMMARIES, TABLES

SUMMARISED = {"summarise": len(SUMMARIES), "summarise_costs": 1, "summary": 1, "metrics": 1}
PRODUCTS = SUMMARISED | {"table": len(TABLES), "figure": len(FIGURES)}
