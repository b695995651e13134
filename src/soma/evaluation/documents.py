"""Per-document losses of trained ensembles on an evaluation set. Only this module opens the test set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.data.sets import EvaluationSet, open_external, open_test, open_validation
from soma.evaluation.ensemble import TokenLosses, lstm_losses, mixture_losses, selected_losses
from soma.evaluation.published import Published
from soma.evaluation.rows import COLUMNS
from soma.forward.engine import Engine
from soma.models import gru
from soma.runs import ITERATES, Iterate, own_method

Role = Literal["validation", "test", "external"]


def open_set(role: Role, path: Path) -> EvaluationSet:
    """Open an evaluation set with the type of its role; a file of another role is an error."""
    return {"validation": open_validation, "test": open_test, "external": open_external}[role](path)


def evaluate_run(
    opened: Published, selected: NDArray[np.integer], data: EvaluationSet, engine: Engine, active: Sequence[int]
) -> pd.DataFrame:
    """Sum the losses of each document at every milestone, for both iterates and each number of active experts.

    Args:
        opened: a run with all milestones.
        selected: experts of every window in the router's order, nearest first, [n, K].
        active: numbers of experts to average; each at most K.

    Returns:
        One row per (update, iterate, k, document) with COLUMNS; `nats` is the sum over `bytes` scored bytes.
    """
    frames = [
        document_losses(opened, selected, data, engine, active, update, iterate)
        for update in opened.run.milestones
        for iterate in ITERATES
    ]
    return pd.concat(frames, ignore_index=True)


def document_losses(
    opened: Published,
    selected: NDArray[np.integer],
    data: EvaluationSet,
    engine: Engine,
    active: Sequence[int],
    update: int,
    iterate: Iterate,
) -> pd.DataFrame:
    """Return the rows of `evaluate_run` for one update and iterate."""
    losses = selected_losses(_token_losses(opened, engine, update, iterate), data.windows, selected, data.prefix)
    frames = []
    for k in active:
        nats = mixture_losses(losses[:, :k]).sum(axis=1)
        frames.append(per_document(data, nats).assign(update=update, iterate=iterate, k=k))
    rows = pd.concat(frames, ignore_index=True).assign(run=opened.run.id, set=data.role)
    return rows[list(COLUMNS)]


def _token_losses(opened: Published, engine: Engine, update: int, iterate: Iterate) -> TokenLosses:
    run = opened.run
    if run.settings.method == "eggroll":
        s, bodies = run.settings.eggroll, opened.checkpoints.bodies(update, iterate)
        return lambda expert, windows: gru.token_losses(
            run.gru, bodies[expert], windows, nonlinearity=s.nonlinearity, separator=s.separator
        )
    if run.family == "module":
        model = own_method(run.settings.method).network(run.settings)
        bodies = opened.checkpoints.bodies(update, iterate)
        return lambda expert, windows: model.token_losses(bodies[expert], windows)
    return lstm_losses(engine, opened.experts(update, iterate))


def per_document(data: EvaluationSet, nats: NDArray[np.float64]) -> pd.DataFrame:
    scored = data.windows.shape[1] - 1 - data.prefix
    frame = pd.DataFrame(
        {
            "split": data.split,
            "document": data.document,
            "document_id": data.document_ids,
            "group": data.group,
            "host": data.host,
            "windows": 1,
            "bytes": scored,
            "nats": nats,
        }
    )
    keys = ["split", "document", "document_id", "group", "host"]
    return frame.groupby(keys, sort=True, as_index=False).sum(skipna=False)
