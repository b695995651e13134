"""Names of all products, and the jobs that make them anew from the toy campaign's evaluation."""

TABLES = [
    *(f"table{n}" for n in range(1, 14)),
    *("claims", "controls", "sizes", "ablation", "crossings", "populations", "estimators", "costs", "precision"),
    *("clusters", "steps"),
]
FIGURES = [f"figure{n}" for n in (1, *range(4, 12), 13, 14, 15, 16, 17)] + ["precision", "sizes", "estimators"]

SUMMARISED = {"summarise": 20, "summarise_costs": 1, "summary": 1, "metrics": 1}
PRODUCTS = SUMMARISED | {"table": len(TABLES), "figure": len(FIGURES)}
