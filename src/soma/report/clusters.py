"""Cluster table: top terms and sizes, and how often the prefix finds the cluster of the whole window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from soma.plan import Plan
from soma.report.labels import watermark_notes
from soma.report.table import Cell, Table, number


def clusters_table(plan: Plan, described: Sequence[Mapping[str, Any]]) -> Table:
    """Build the cluster table, one row per cluster of every N, from the JSON records of the assign step."""
    rows, notes = [], []
    for facts in sorted(described, key=lambda f: f["experts"]):
        n, windows = facts["experts"], facts["windows"]
        shares = [c["assigned"] / windows for c in facts["clusters"]]
        notes.append(
            f"N={n}: nearest-centroid shards hold {min(shares):.1%} to {max(shares):.1%} of the windows (even: "
            f"{1 / n:.1%}); the first {facts['prefix']} bytes find the cluster of the whole window in "
            f"{facts['prefix_agreement']:.1%} of {facts['prefix_agreement_windows']:,} training windows."
        )
        for cluster in facts["clusters"]:
            rows.append(
                (
                    Cell(str(n), "set", n),
                    Cell(str(cluster["cluster"]), "set", cluster["cluster"]),
                    Cell(" ".join(cluster["terms"])),
                    number(cluster["assigned"], "measured", -1),
                    number(100 * cluster["assigned"] / windows, "measured", 1),
                    number(cluster["balanced"], "measured", -1),
                )
            )
    columns = ("N", "cluster", "most distinctive words", "training windows", "share (%)", "balanced fit (sample)")
    return Table("clusters", "Clusters", columns, tuple(rows), (*notes, *watermark_notes(plan)))
