"""Documents won, and intervals that resample whole sources of documents (Appendices J and L)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.contrasts import Side, contrast, documents_won, scores_of
from soma.evaluation.rows import KEYS
from soma.plan import Plan

SOURCES = {"group": "source groups", "host": "web hosts"}
"""Columns of an evaluation's rows that name a document's source, with their names for readers."""
FEWEST = 8
"""Least sources to resample: an interval over fewer is too narrow."""


def compare(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compare arms document by document at the end of their budgets, on test: what one row of Table 4 or Figure 4 is.

    Args:
        rows: per-document losses of the arms of equal total size, and of the paired arms.

    Returns:
        One row per pair of arms: `documents`, `won` (documents with a lower loss in every seed), the columns of
        `contrasts.contrast`, and for each of SOURCES the number of sources (`group_count`) and the 95 % interval that
        resamples them whole (`group_low`, `group_high`), NaN with fewer than FEWEST.
    """
    scores = scores_of(plan, rows)
    by_source = {name: _whole(rows, name) for name in SOURCES}
    resampled = {
        name: scores_of(plan, table) for name, table in by_source.items() if table["document"].nunique() >= FEWEST
    }
    out = []
    for comparison, ours, theirs in _pairs(plan):
        row: dict[str, Any] = {"comparison": comparison, "ours": ours, "theirs": theirs}
        row |= {"documents": scores.documents, "won": documents_won(plan, scores, Side(ours), Side(theirs))}
        for name, table in by_source.items():
            whole = contrast(plan, resampled[name], Side(ours), Side(theirs)) if name in resampled else {}
            row |= {f"{name}_count": table["document"].nunique()}
            row |= {f"{name}_{end}": whole.get(end, np.nan) for end in ("low", "high")}
        out.append(row | contrast(plan, scores, Side(ours), Side(theirs)))
    return pd.DataFrame(out)


def _pairs(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield every comparison: its name, our arm and the other."""
    product, paired = plan.config.products.fixed_size, plan.config.products.paired
    for arm in (*product.against, *product.also):
        yield "equal total size", product.soma, arm
    yield "paired, early", *paired.early
    yield "paired, late", *paired.late


def _whole(rows: pd.DataFrame, source: str) -> pd.DataFrame:
    """Sum losses over all documents of a source, whose name takes the place of the document's; empty without names."""
    named = rows if (rows[source] != "").all() else rows[:0]
    keys = [key for key in KEYS if key != "document"]
    summed = named.groupby([*keys, source], as_index=False)[["bytes", "nats"]].sum()
    return summed.rename(columns={source: "document"})
