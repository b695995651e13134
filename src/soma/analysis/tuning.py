"""Equal search over lr and eps (Tables 6 and 7, claim C3): choose on ensemble validation, then test once.

Every setting has the same seeds and the same budget for both methods. A run that ends without a finite loss counts as a
failure of its setting, which is then not chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from soma.analysis.choice import losses_of, lowest, mark_chosen, outcome, picks
from soma.analysis.contrasts import (
    Side,
    difference_row,
    scores_of,
)
from soma.analysis.verdict import Difference, difference_of
from soma.plan import Plan
from soma.runs import RunSpec


def search(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the ensemble-validation loss of every setting at the end of its budget, and choose one.

    Args:
        rows: per-document losses of the tuning runs on the validation set (`evaluate.COLUMNS`).

    Returns:
        One row per (base arm, setting): `loss`, the mean over seeds, `sd`, their sample standard deviation, `seed_low`
        and `seed_high`, the 95 % interval over seeds, `failed` runs, `chosen`, `chosen_by`, the seeds that it is chosen
        for, and `edge`, the rates (lr, eps) of a chosen setting that are the smallest or largest tried.
    """
    tuning = plan.config.products.tuning
    out: list[dict[str, Any]] = []
    for base in (tuning.soma, tuning.spsa):
        candidates: list[dict[str, Any]] = []
        for name, change in tuning.variants(base).items():
            rates = {"lr": change["lr"], "eps": change["eps"]}
            candidates.append({"base": base, "arm": name, **rates, **outcome(plan, rows, name)})
        losses = np.array([losses_of(plan, rows, row["arm"]) for row in candidates])
        best = picks(losses, tuning.each_seed, base)
        for i, row in enumerate(candidates):
            row["chosen_by"] = " ".join(str(seed) for seed, pick in zip(tuning.seeds, best, strict=True) if pick == i)
        out += mark_chosen(candidates, [{"lr": row["lr"], "eps": row["eps"]} for row in candidates], best)
    return pd.DataFrame(out)


def search_widths(plan: Plan, rows: pd.DataFrame) -> pd.DataFrame:
    """Find the lowest ensemble-validation loss of EGGROLL at each of its other widths (Appendix I).

    Returns:
        One row per width: its `parameters`, the last update of the runs (`updates`), the milestone with the lowest mean
        over seeds (`update`) with its `operations`, `loss`, and `seed_low` and `seed_high`, the 95 % interval over
        seeds.
    """
    out = []
    for setting, name in zip(plan.config.products.widths.settings, plan.groups["widths"], strict=True):
        first = plan.arm_runs[name][0]
        at = [outcome(plan, rows, name, update) for update in first.milestones]
        best = lowest([row["loss"] for row in at], name)
        update = first.milestones[best]
        facts = {"width": setting.width, "parameters": first.parameters, "updates": setting.updates, "update": update}
        out.append(facts | {"operations": float(first.operations(update))} | at[best])
    columns = ["width", "parameters", "updates", "update", "operations", "loss", "seed_low", "seed_high", "seeds"]
    return pd.DataFrame(out, columns=[*columns, "run"])


def compare(plan: Plan, searched: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Compute the test loss of the chosen settings: one row per seed, and a last one over all seeds without `seed`.

    Args:
        rows: per-document losses of the chosen runs on the test set.

    Returns:
        `soma`, `spsa`, and `difference`, SOMA minus SPSA, with its interval over documents and, in the last row, over
        seeds.
    """
    tuning = plan.config.products.tuning
    scores = scores_of(plan, rows)
    runs, losses = dict[str, list[RunSpec]](), dict[str, Any]()
    for name, base in (("soma", tuning.soma), ("spsa", tuning.spsa)):
        own = searched[(searched["base"] == base) & searched["chosen"]]
        by_seed = {int(seed): str(row.arm) for row in own.itertuples() for seed in row.chosen_by.split()}
        sides = [(by_seed[seed], plan.arm_runs[by_seed[seed]][i]) for i, seed in enumerate(tuning.seeds)]
        runs[name] = [run for _, run in sides]
        losses[name] = scores.loss([Side(arm).key(plan, run) for arm, run in sides])
    (soma, soma_draws), (spsa, spsa_draws) = losses["soma"], losses["spsa"]
    every = np.arange(len(tuning.seeds))
    out = []
    for seed, which in [*zip(tuning.seeds, every[:, None], strict=True), (None, every)]:
        ids = {f"{name}_run": " ".join(of_arm[i].id for i in which) for name, of_arm in runs.items()}
        row = {"seed": seed, "soma": soma[which].mean(), "spsa": spsa[which].mean(), **ids}
        out.append(row | difference_row((soma - spsa)[which], (soma_draws - spsa_draws)[:, which]))
    return pd.DataFrame(out).assign(run=lambda table: table["spsa_run"] + " " + table["soma_run"])


def equally_tuned(plan: Plan, rows: pd.DataFrame) -> list[Difference]:
    """Return what C3 claims: SOMA better than SPSA with equally tuned rates."""
    (row,) = rows[rows["seed"].isna()].itertuples()
    return [difference_of(row, "SOMA minus SPSA, equally tuned")]


def spread_over_seeds(compared: pd.DataFrame) -> float:
    """Return the sample standard deviation over seeds of the differences in the rows of `compare`."""
    return float(compared.loc[compared["seed"].notna(), "difference"].std(ddof=1))
