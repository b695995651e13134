"""Choice of the equal search on ensemble validation, as data that names the runs for the single test evaluation.

It is separate from the summaries, which depend on the whole campaign: changing a label must not evaluate test again.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from soma.analysis.choice import final_loss, lowest, mean_loss
from soma.files.atomic import read_json, write_json
from soma.runs import RunSpec


def choose(settings: Path, validation: Path, output: Path) -> None:
    """Write the runs of every searched arm's best setting, in the format that `evaluate_group` reads.

    Args:
        settings: settings of every arm, each a list of runs (`plan.settings_files`).
        validation: per-document losses of all these runs on the validation set.
    """
    rows, chosen = pd.read_parquet(validation), []
    for base, tried in read_json(settings).items():
        losses = [
            mean_loss([final_loss(rows, RunSpec.model_validate(entry["run"]), *entry["active"]) for entry in entries])
            for entries in tried
        ]
        chosen += tried[lowest(losses, base)]
    write_json(output, chosen)
