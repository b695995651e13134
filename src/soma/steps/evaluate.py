"""The step `evaluate`: per-document losses of a group of runs on one evaluation set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from soma.config.base import read_as
from soma.config.training import Compute
from soma.data.sets import EvaluationSet
from soma.evaluation.documents import Role, evaluate_run, open_set
from soma.evaluation.published import Published, Routers
from soma.files.tables import write_rows
from soma.forward.engine import Engine
from soma.forward.registry import create


def evaluate(
    settings: Path,
    role: Role,
    windows: Path,
    runs: Path,
    routing: Path,
    output: Path,
    compute: Path,
    threads: int,
) -> None:
    """Write per-document losses of a group of runs as Parquet.

    Args:
        settings: runs to open (`Plan.published`), each with the numbers of `active` experts to average.
        runs, routing: folders of all runs, and of features and routers.
    """
    torch.set_num_threads(threads)
    how = read_as(Compute, compute)
    engine = create(how.engine, how.device)
    rows = evaluate_runs(
        read_as(list[dict[str, Any]], settings), runs, Routers(routing), open_set(role, windows), engine
    )
    write_rows(output, rows)


def evaluate_runs(
    entries: Iterable[Mapping[str, Any]], runs: Path, routers: Routers, data: EvaluationSet, engine: Engine
) -> pd.DataFrame:
    """Return the rows of `soma.evaluation.documents.evaluate_run` for every run."""
    frames = []
    for entry in entries:
        opened, active = Published.open(entry, runs, milestones=True), entry["active"]
        selected = routers.select(opened.run, data, max(active))
        frames.append(evaluate_run(opened, selected, data, engine, active))
    return pd.concat(frames, ignore_index=True)
