"""The step `measure`: one measurement at saved checkpoints."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch

from soma.config.training import Compute
from soma.files.atomic import atomic_path, read_json
from soma.measurements.inputs import Inputs


def measure(name: str, settings: Path, results: Path, output: Path, compute: Path, threads: int) -> None:
    """Write the rows of one measurement as Parquet.

    Args:
        name: module of `soma.measurements`, with hyphens in place of underscores.
        results: folder of the campaign.
    """
    torch.set_num_threads(threads)
    at = Inputs(read_json(settings), results, Compute.model_validate(read_json(compute) | {"threads": threads}))
    rows = importlib.import_module(f"soma.measurements.{name.replace('-', '_')}").measure(at)
    with atomic_path(output) as path:
        rows.to_parquet(path, index=False)
