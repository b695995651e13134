"""Names of the files of a trained part; the workflow knows them without importing torch."""

from __future__ import annotations

from pathlib import Path

WEIGHTS, MILESTONES, LEG = "weights.safetensors", "milestones.safetensors", "leg.safetensors"
HISTORY, COST, RECORD = "history.parquet", "cost.json", "run.json"
PUBLISHED = (MILESTONES, WEIGHTS, LEG, HISTORY, COST, RECORD)
"""What a part publishes, in this order; only some runs have a LEG. The record comes last: it says that all is there."""

STATE, PREVIOUS, DAMAGED = "state.safetensors", "previous.safetensors", "damaged.safetensors"
OTHERS = "of-*.safetensors"
STATES = (STATE, PREVIOUS, DAMAGED, OTHERS)
"""What a folder of resume states holds, as shell patterns."""
FINISHED, INDEX = "finished", "finished.json"
"""Folder of a finished part, within that of its resume states, and its index."""
HOLDS = (*PUBLISHED, INDEX)
"""What that folder holds."""


def lock_of(folder: Path) -> Path:
    """Return the lock of a folder of resume states; it is beside the folder, which may be removed."""
    return folder.with_name(f".{folder.name}.lock")
