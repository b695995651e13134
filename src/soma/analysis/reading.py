"""The inputs of the catalogue's functions, loaded from the files of a campaign."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from soma import layout
from soma.analysis.claims import verdicts
from soma.catalogue import Facts, Histories, IfGiven, Losses, Read, Verdicts
from soma.config.base import read_as
from soma.config.campaign import Config
from soma.evaluation.rows import COLUMNS, KEYS
from soma.files.atomic import read_json
from soma.files.tables import read_rows
from soma.plan import Plan, make_plan


def load_plan(settings: Path) -> Plan:
    """Return the plan of the campaign whose settings a step was given."""
    return make_plan(read_as(Config, settings))


def load(reads: Iterable[Read], plan: Plan, results: Path) -> list[Any]:
    """Return one value for each read, from the folder of a campaign.

    Returns:
        A table for rows and losses; tables by run for histories; JSON by role or number of clusters for facts; all
        claims with their verdicts (`claims.Judged`) for verdicts; None for rows that the campaign does not have.
    """
    return [_load(read, plan, results) for read in reads]


def _load(read: Read, plan: Plan, results: Path) -> Any:
    match read:
        case str():
            return read_rows(results / layout.rows(read))
        case IfGiven():
            return _load(read.rows, plan, results) if plan.config.catalogue.has(read.rows) else None
        case Losses():
            frames = [read_rows(results / file) for file in layout.losses(read, plan)]
            frames = frames or [pd.DataFrame(columns=list(COLUMNS))]  # a product may have no arms
            # A run shared by two groups was evaluated in both.
            return pd.concat(frames, ignore_index=True).drop_duplicates(list(KEYS))
        case Histories():
            return {
                run: pd.concat([read_rows(results / file) for file in files])
                for run, files in layout.histories(read, plan).items()
            }
        case Facts():
            return {name: read_json(results / file) for name, file in layout.facts(read, plan).items()}
        case Verdicts():
            return verdicts(plan, lambda name: read_rows(results / layout.rows(name)))
