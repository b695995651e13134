"""The claims page: for C1 ... C16 what the paper says, what this campaign measured, and the verdict."""

from __future__ import annotations

import pandas as pd

from soma.analysis.bootstrap import seed_interval
from soma.analysis.verdict import RULE, Difference, from_row, judge
from soma.plan import Plan
from soma.report.table import NOT_RUN, Cell, Table
from soma.report.tables import arm_label, watermark_notes

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
_PAPER = {
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


def claims_table(plan: Plan, differences: pd.DataFrame, backpropagation: pd.DataFrame, tuned: pd.DataFrame) -> Table:
    """One row per claim; several differences of a claim stand in one cell.

    Args:
        differences, backpropagation, tuned: rows of `fixed_size.summarise`, `backpropagation.summarise` and
            `tuning.compare`.
    """
    evidence = {
        "C1": _differences(plan, differences, "test"),
        "C2": _differences(plan, differences, "external"),
        "C3": _tuned(tuned),
        "C16": _backpropagation(backpropagation),
    }
    rows = []
    for claim, statement in CLAIMS.items():
        if claim not in evidence:
            rows.append((Cell(claim), Cell(statement), Cell(_PAPER[claim], "paper"), *[NOT_RUN] * 4))
            continue
        measured = evidence[claim]
        verdict, reason = judge([d for d, _ in measured], plan.config.untestable.get(claim))
        text = "; ".join(f"{d.mean:+.4f} [{d.low:+.4f}, {d.high:+.4f}] against {d.name}" for d, _ in measured)
        seeds = "; ".join(
            f"{d.seeds}" + ("" if d.seeds < 2 else f" [{d.seed_low:+.4f}, {d.seed_high:+.4f}]") for d, _ in measured
        )
        run = " ".join(dict.fromkeys(r for _, runs in measured for r in runs.split()))
        rows.append(
            (
                Cell(claim),
                Cell(statement),
                Cell(_PAPER[claim], "paper"),
                Cell(text, "measured", run=run),
                Cell(seeds, "measured", run=run),
                Cell(verdict, "measured", run=run),
                Cell(reason),
            )
        )
    columns = (
        "claim", "statement", "paper", "measured difference, 95 % over documents", "seeds, 95 % over seeds", "verdict",
        "why",
    )  # fmt: skip
    return Table("claims", "Claims", columns, tuple(rows), (RULE, *watermark_notes(plan)))


def _tuned(rows: pd.DataFrame) -> list[tuple[Difference, str]]:
    """SOMA minus SPSA at the settings that the equal search chose; its interval is the one over seeds."""
    over_seeds = seed_interval(-rows["difference"].to_numpy())
    if over_seeds is None:
        return []
    runs = " ".join([*rows["soma_run"], *rows["spsa_run"]])
    ends = (over_seeds.low, over_seeds.high)
    return [(Difference("SPSA at equal tuning", over_seeds.mean, *ends, *ends, len(rows)), runs)]


def _backpropagation(rows: pd.DataFrame) -> list[tuple[Difference, str]]:
    """BPTT minus zeroth-order at the largest budget of every N that both reached."""
    out = []
    for n, group in rows[rows["seeds"] > 0].groupby("experts"):
        row = group.sort_values("operations").iloc[-1]
        out.append((from_row(row, f"zeroth order, N={n}"), f"{row.zeroth_order_runs} {row.bptt_runs}"))
    return out


def _differences(plan: Plan, differences: pd.DataFrame, set_: str) -> list[tuple[Difference, str]]:
    against = plan.config.products.fixed_size.against
    rows = differences[
        (differences["set"] == set_) & (differences["iterate"] == "last") & differences["other"].isin(against)
    ]
    out = []
    for row in rows.itertuples():
        split = f" ({row.split})" if row.split and rows["split"].nunique() > 1 else ""
        out.append((from_row(row, arm_label(plan.config.arms[row.other]) + split), row.run))
    return out
