"""Labels of arms, and notes and cells shared by all products."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from soma.analysis import bootstrap
from soma.analysis.gradients import TRUSTED, reference_share
from soma.analysis.scores import at_end
from soma.analysis.verdict import Difference, difference_of
from soma.config.campaign import Arm
from soma.plan import Plan
from soma.report.table import NONE, NOT_RUN, Cell, interpolated, number, with_interval

LOSS_NOTE = (
    "Losses are nats per byte: last iterate, k = min(4, N) experts averaged, mean over seeds; brackets: 95 % paired "
    "bootstrap interval over documents."
)
NGRAM_NOTE = (
    "References: n-gram models of the same training text on the same scored bytes, interpolated after Witten and Bell."
)
SEED_NOTE = "`over seeds`: Student-t 95 % interval of the mean over seeds."
RUN_NOTE = "Of several runs: the geometric mean, with the Student-t 95 % interval of the mean logarithm."


def hardware(rows: pd.DataFrame) -> str:
    """Describe the hardware on which rows were timed: `device`, `threads` and `engine`."""
    return "; ".join(
        sorted({f"{r.device}, {r.threads} thread(s) per job, engine `{r.engine}`" for r in rows.itertuples()})
    )


def arm_label(arm: Arm) -> str:
    """Return an arm's label in tables and figures."""
    if arm.label:
        return arm.label
    if arm.method == "eggroll":
        return f"EGGROLL, population {arm.eggroll.population:,}"
    if arm.method == "bptt":
        return f"BPTT N={arm.experts}"
    if ":" in arm.method:
        return f"{arm.method.partition(':')[2]} N={arm.experts}"
    name = "SOMA" if arm.experts > 1 else "SPSA"
    where = " on random shards" if arm.experts > 1 and arm.partition == "random" else ""
    loss = ", summed loss" if arm.loss == "summed" else ""
    return f"{name} N={arm.experts}{where}, n_pert={arm.n_pert}{loss}"


def named(plan: Plan, text: str) -> str:
    """Replace the configuration's names of arms in a text by their labels."""
    return re.sub(r"[a-z0-9.-]+", lambda m: arm_label(plan.arms[m[0]]) if m[0] in plan.arms else m[0], text)


def watermark_notes(plan: Plan) -> tuple[str, ...]:
    campaign = f"Campaign `{plan.config.campaign}`."
    mark = plan.config.watermark
    return (f"{campaign} {mark.upper()}: the size of this run supports no conclusion." if mark else campaign,)


def loss_cell(row: Any, digits: int = 4) -> Cell:
    """Return the loss of an `against` row with its interval over documents."""
    return with_interval(row.loss, row.loss_low, row.loss_high, row.run, digits)


def loss_seeds_cell(row: Any) -> Cell:
    """Return the interval of a loss over seeds."""
    if pd.isna(row.seed_low):
        return Cell(f"{int(row.seeds)} seed", "measured", int(row.seeds), run=row.run)
    half = (row.seed_high - row.seed_low) / 2
    return Cell(f"± {half:.4f} ({int(row.seeds)} seeds)", "measured", half, row.seed_low, row.seed_high, row.run)


def searched_cell(row: Any) -> Cell:
    """Return the loss of a searched setting: mean, interval and standard deviation over its seeds."""
    if row.failed:
        return Cell(f"{row.failed} of {row.seeds} failed", "measured", row.failed, run=row.run)
    if pd.isna(row.seed_low):
        return replace(number(row.loss, "measured", 4, row.run), text=f"{row.loss:.4f} (1 seed)")
    cell = with_interval(row.loss, row.seed_low, row.seed_high, row.run)
    return replace(cell, text=f"{cell.text}, sd {row.sd:.4f}")


def over_runs(values: Sequence[float] | pd.Series, digits: int, runs: str) -> Cell:
    """Return the geometric mean over runs with its 95 % interval, which a single run lacks."""
    known = bootstrap.over_runs(values)
    if known is None:
        return NOT_RUN
    mean, interval = known
    cell = number(mean, "measured", digits, runs)
    if interval is None:
        return cell
    low, high = (number(end, "measured", digits).text for end in (interval.low, interval.high))
    return replace(cell, text=f"{cell.text} [{low}, {high}]", low=interval.low, high=interval.high)


def with_error(value: float, error: float, digits: int, runs: str) -> Cell:
    """Return a value with its measured standard error."""
    cell = number(float(value), "measured", digits, runs)
    return replace(cell, text=f"{cell.text} ± {number(float(error), 'measured', digits).text} s.e.")


def difference_cells(difference: Difference, digits: int = 4) -> tuple[Cell, Cell]:
    """Return a difference with its interval over documents, if any, and its interval over seeds.

    If all values are small, they get two more digits instead of zeros.
    """
    d, run = difference, difference.run
    if np.isnan(d.mean):
        return NOT_RUN, NOT_RUN
    digits += 2 if max(abs(x) for x in (d.mean, d.low, d.high) if not np.isnan(x)) < 5 * 10**-digits else 0
    low, high = (None if np.isnan(x) else x for x in (d.low, d.high))
    text = f"{d.mean:+.{digits}f}" + _ends(d.low, d.high, digits)
    value = interpolated(Cell(text, "measured", d.mean, low, high, run), d.interpolated)
    if np.isnan(d.seed_low):
        return value, Cell(f"{d.seeds} seed", "measured", d.seeds, run=run)
    seeds = f"{_ends(d.seed_low, d.seed_high, digits).strip()} ({d.seeds} seeds)"
    return value, Cell(seeds, "measured", d.seeds, d.seed_low, d.seed_high, run)


def against_cells(row: Any, digits: int = 4) -> tuple[Cell, Cell]:
    """Return the difference of an `against` row; the base row has none."""
    return (NONE, NONE) if pd.isna(row.difference) else difference_cells(difference_of(row), digits)


def _ends(low: float, high: float, digits: int) -> str:
    return "" if np.isnan(low) else f" [{low:+.{digits}f}, {high:+.{digits}f}]"


def agreement(rows: pd.DataFrame) -> str:
    """State in a sentence how far apart the two references of a run are at its end, and what their noise adds."""
    end = at_end(rows)
    share = reference_share(end).max()
    if np.isnan(share):
        return "the noise of the references was not measured: these rows are of an older definition."
    sentence = f"the two references of a run lie up to {end['cosine_distance'].max():.3f} apart in cosine distance"
    trusted = (
        "is little" if share <= TRUSTED else "is too much: these errors are not trusted, whatever the intervals say"
    )
    return f"{sentence}; their noise adds up to {share:.2%} to an error, which {trusted} (up to {TRUSTED:.0%} counts)."
