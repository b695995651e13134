"""The step `measure`: one measurement at saved checkpoints."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict

from soma.config.base import Model, Seed, read_as
from soma.config.training import Compute
from soma.files.tables import write_rows
from soma.measurements.inputs import Inputs


class Settings(Model):
    """What every measurement needs; some have more (`workflow.settings`)."""

    model_config = ConfigDict(extra="allow")

    seed: Seed
    runs: list[dict[str, Any]]
    milestones: bool
    product: dict[str, Any]


def measure(name: str, settings: Path, results: Path, output: Path, compute: Path, threads: int) -> None:
    """Write the rows of one measurement as Parquet.

    Args:
        name: module of `soma.measurements`, with hyphens in place of underscores.
        results: folder of the campaign.
    """
    torch.set_num_threads(threads)
    how = read_as(Compute, compute).model_copy(update={"threads": threads})
    at = Inputs(read_as(Settings, settings).model_dump(), results, how)
    rows = importlib.import_module(f"soma.measurements.{name.replace('-', '_')}").measure(at)
    write_rows(output, rows)
