"""Per-document losses of trained ensembles on an evaluation set. Only this module opens the test set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from soma.data.sets import EvaluationSet, open_external, open_test, open_validation
from soma.evaluation.ensemble import TokenLosses, lstm_losses, mixture_losses, selected_losses
from soma.evaluation.rows import COLUMNS
from soma.forward.engine import Engine
from soma.models import gru
from soma.runs import ITERATES, Iterate, RunSpec
from soma.training.checkpoint import Checkpoints

Role = Literal["validation", "test", "external"]


def open_set(role: Role, path: Path) -> EvaluationSet:
    """Open an evaluation set with the type of its role; a file of another role is an error."""
    return {"validation": open_validation, "test": open_test, "external": open_external}[role](path)


def evaluate_run(
    run: RunSpec,
    checkpoints: Checkpoints,
    shared_head: Tensor | None,
    selected: NDArray[np.integer],
    data: EvaluationSet,
    engine: Engine,
    active: Sequence[int],
) -> pd.DataFrame:
    """Sum the losses of each document at every milestone, for both iterates and each number of active experts.

    Args:
        shared_head: [V, H] of a run with a shared frozen head, else None.
        selected: experts of every window in the router's order, nearest first, [n, K].
        active: numbers of experts to average; each at most K.

    Returns:
        One row per (update, iterate, k, document) with COLUMNS; `nats` is the sum over `bytes` scored bytes.
    """
    frames = [
        document_losses(run, checkpoints, shared_head, selected, data, engine, active, update, iterate)
        for update in run.milestones
        for iterate in ITERATES
    ]
    return pd.concat(frames, ignore_index=True)


def document_losses(
    run: RunSpec,
    checkpoints: Checkpoints,
    shared_head: Tensor | None,
    selected: NDArray[np.integer],
    data: EvaluationSet,
    engine: Engine,
    active: Sequence[int],
    update: int,
    iterate: Iterate,
) -> pd.DataFrame:
    """Return the rows of `evaluate_run` for one update and iterate."""
    token_losses = _token_losses(run, checkpoints, shared_head, engine, update, iterate)
    losses = selected_losses(token_losses, data.windows, selected, data.prefix)
    frames = []
    for k in active:
        nats = mixture_losses(losses[:, :k]).sum(axis=1)
        frames.append(_per_document(data, nats).assign(update=update, iterate=iterate, k=k))
    rows = pd.concat(frames, ignore_index=True).assign(run=run.id, set=data.role)
    return rows[list(COLUMNS)]


def _token_losses(
    run: RunSpec, checkpoints: Checkpoints, shared_head: Tensor | None, engine: Engine, update: int, iterate: Iterate
) -> TokenLosses:
    bodies = checkpoints.bodies(update, iterate)
    if run.settings.method == "eggroll":
        s = run.settings.eggroll
        return lambda expert, windows: gru.token_losses(
            run.gru, bodies[expert], windows, nonlinearity=s.nonlinearity, separator=s.separator
        )
    heads = shared_head[None] if shared_head is not None else checkpoints.heads(update, iterate)
    return lstm_losses(engine, run.model, bodies, heads)


def _per_document(data: EvaluationSet, nats: NDArray[np.float64]) -> pd.DataFrame:
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
