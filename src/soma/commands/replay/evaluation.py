"""Replay of evaluations: documents of the evaluation sets, routed and scored again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.commands.replay.comparison import Agreement, Allowed, reading
from soma.commands.replay.recorded import Campaign, Part, allowed, read_rows, require
from soma.data.sets import EvaluationSet
from soma.evaluation.documents import Role, document_losses, open_set
from soma.evaluation.published import Published
from soma.numerics.rng import Stream
from soma.runs import RunSpec

ROLES: tuple[Role, ...] = ("validation", "test", "external")
DOCUMENTS = 2
"""Number of documents of a set that are scored again, in most cases."""

_KEYS = ["k", "split", "document"]


def evaluated(campaign: Campaign, role: Role) -> dict[Path, list[str]]:
    """Return the runs in every evaluation of a set, by the file of its rows."""
    files = sorted((campaign.results / "evaluation" / role).glob("*.parquet"))
    return {path: [str(run) for run in read_rows(path)["run"].unique()] for path in files}


def evaluation(campaign: Campaign, run: str, role: Role, rows: Path) -> Agreement:
    """Score some documents again with a run's final weights, and compare their losses with its rows."""
    part = campaign.runs[run][0]
    entry = campaign.entry(run)
    engine, _ = part.engine()
    agreement = Agreement(_allowed(part))
    for each in campaign.runs[run]:
        each.check_files(agreement)
    with reading("weights.safetensors"):
        opened = Published.open(entry, campaign.results / "runs")
    data = _open_set(campaign, role)
    sample = _only(data, _sample(data, part.run))
    recorded = _recorded(rows, part, sample)
    active = sorted(int(k) for k in recorded["k"].unique())
    selected = _selected(campaign, part, sample, max(active))
    here = document_losses(opened, selected, sample, engine, active, part.run.updates, "last")
    _compare(recorded, here, agreement, part.run.updates)
    return agreement


def extent(run: RunSpec) -> str:
    """Describe in words how many documents of a set are scored again."""
    return "all documents" if _amplifies(run) else f"{DOCUMENTS} documents"


def _amplifies(run: RunSpec) -> bool:
    """Return True for models that must be scored in the same batches as when recorded.

    EGGROLL's trained recurrence is chaotic: if the last bit of a weight or sum changes, token losses differ by tenths
    of a nat 100 bytes later, and a document's loss by 0.2 %, even in float64. torch's rounding depends on the batch
    size.
    """
    return run.settings.method == "eggroll"


def _allowed(part: Part) -> Allowed | None:
    engine, _ = part.engine()
    common = allowed(part, engine, by_torch=part.run.family != "lstm")
    if common is None and not engine.exact:
        return Allowed(f"the engine {engine.name}, whose arithmetic depends on the processor")
    return common


def _open_set(campaign: Campaign, role: Role) -> EvaluationSet:
    path = campaign.results / f"sets/{role}.parquet"
    require([path, path.with_suffix(".json")])
    with reading(f"sets/{path.name}"):
        return open_set(role, path)


def _sample(data: EvaluationSet, run: RunSpec) -> NDArray[np.int64]:
    """Draw documents of a set, different ones for every run, so that all runs together cover more of the set."""
    documents = np.unique(data.document)
    if _amplifies(run):
        return documents
    order = np.argsort(Stream.named(0, "replay", run.id, data.role).uniform(len(documents)), kind="stable")
    return documents[order[:DOCUMENTS]]


def _only(data: EvaluationSet, documents: NDArray[np.int64]) -> EvaluationSet:
    """Restrict a set to the windows of some of its documents."""
    chosen = np.isin(data.document, documents)
    of_windows = ("windows", "document", "document_ids", "split", "group", "host", "offset")
    return replace(data, **{name: getattr(data, name)[chosen] for name in of_windows})


def _selected(campaign: Campaign, part: Part, data: EvaluationSet, k: int) -> NDArray[np.int64]:
    """Route the windows of a set."""
    routing = campaign.results / "routing"
    if part.run.clusters is not None:
        require([routing / "features", routing / f"router-n{part.run.clusters}"])
    with reading("routing"):
        return campaign.routers.select(part.run, data, k)


def _recorded(path: Path, part: Part, data: EvaluationSet) -> pd.DataFrame:
    rows = read_rows(path)
    own = (rows["run"] == part.run.id) & (rows["update"] == part.run.updates) & (rows["iterate"] == "last")
    return rows[own & rows["document"].isin(data.document)]


def _compare(recorded: pd.DataFrame, here: pd.DataFrame, agreement: Agreement, update: int) -> None:
    agreement.same("rows", len(recorded), len(here))
    pairs = (rows.sort_values(_KEYS).to_dict("records") for rows in (recorded, here))
    for known, repeated in zip(*pairs, strict=True):
        for name in (*_KEYS, "document_id", "windows", "bytes"):
            agreement.same(name, known[name], repeated[name], update=update)
        agreement.close("nats", known["nats"], repeated["nats"], update=update)
