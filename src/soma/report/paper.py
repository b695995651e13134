"""The paper's numbers, `config/paper_values.yaml`: a column beside measured values, never a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from soma.config.campaign import read_yaml
from soma.plan import Plan


class PaperValues:
    def __init__(self, path: Path) -> None:
        self.tables: dict[str, Any] = read_yaml(path)

    def text(self, template: str) -> str:
        """Fill in the numbers that a text of the catalogue names, such as `{table7[mean_difference]}`."""
        return template.format_map(self.tables).replace("%", " %")

    def rows(self, table: str) -> dict[str, dict[str, Any]]:
        """Return rows of Table 4 or 9 by counterpart name, such as `soma-n2-p64`; EGGROLL has no n_pert."""
        out = {}
        for row in self.tables[table]:
            n_pert = f"-p{row['n_pert']}" if "n_pert" in row else ""
            out[f"{row['method']}-n{row['n']}{n_pert}"] = row
        return out

    def same_scale(self, plan: Plan) -> bool:
        """Return True if a campaign's losses can share an axis with the paper's: same corpus and total size."""
        run = plan.arm_runs[plan.config.products.fixed_size.soma][0]
        sizes = [row["ensemble"] for row in self.tables["table2"] if row["n"] == run.experts]
        same_text = plan.config.data.train.source == "fineweb-edu"
        return same_text and any(abs(run.parameters / size - 1) < 0.02 for size in sizes)


def method_label(counterpart: str) -> str:
    """Return a readable label for a counterpart such as `spsa-n1-p256`."""
    method, n, *rest = counterpart.split("-")
    name = {"soma": "SOMA", "spsa": "SPSA", "eggroll": "EGGROLL", "bptt": "BPTT"}[method]
    n_pert = f", n_pert={rest[0][1:]}" if rest else ""
    return f"{name} N={n[1:]}{n_pert}"
