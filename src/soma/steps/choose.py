"""Choice of the equal search on ensemble validation, as data that names the runs for the single test evaluation.

It is separate from the summaries, which depend on the whole campaign: changing a label must not evaluate test again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from soma.analysis.choice import final_loss, picks
from soma.files.atomic import read_json, write_json
from soma.runs import RunSpec


def choose(settings: Path, validation: Path, output: Path) -> None:
    """Write the run of every searched arm's best setting for every seed, in the format that `evaluate_group` reads.

    Args:
        settings: `each_seed`, and `tried`, the settings of every arm, each a list of one run per seed
            (`workflow.settings`).
        validation: per-document losses of all these runs on the validation set.
    """
    rows, chosen, search = pd.read_parquet(validation), [], read_json(settings)
    for base, tried in search["tried"].items():
        losses = [
            [final_loss(rows, RunSpec.model_validate(entry["run"]), *entry["active"]) for entry in entries]
            for entries in tried
        ]
        chosen += [tried[best][i] for i, best in enumerate(picks(np.array(losses), search["each_seed"], base))]
    write_json(output, chosen)
