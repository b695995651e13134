"""Choice of the equal search on ensemble validation, as data that names the runs for the single test evaluation.

It is separate from the summaries, which depend on the whole campaign: changing a label must not evaluate test again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from soma.analysis.choice import final_loss, picks
from soma.config.base import Model, read_as
from soma.files.atomic import write_json
from soma.files.tables import read_rows
from soma.runs import RunSpec


class Settings(Model):
    """How the search chooses, and among which runs."""

    each_seed: bool
    tried: dict[str, list[list[dict[str, Any]]]]
    """Settings of every arm, each a list of one run per seed."""


def choose(settings: Path, validation: Path, output: Path) -> None:
    """Write the run of every searched arm's best setting for every seed, in the format that `evaluate_group` reads.

    Args:
        settings: `Settings` (`workflow.settings`).
        validation: per-document losses of all these runs on the validation set.
    """
    search = read_as(Settings, settings)
    rows, chosen = read_rows(validation), []
    for base, tried in search.tried.items():
        losses = [
            [final_loss(rows, RunSpec.model_validate(entry["run"]), *entry["active"]) for entry in entries]
            for entries in tried
        ]
        chosen += [tried[best][i] for i, best in enumerate(picks(np.array(losses), search.each_seed, base))]
    write_json(output, chosen)
