"""Replay of training: updates of a recorded run, repeated from the files that it read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from soma.commands.replay.comparison import Agreement, Allowed, reading
from soma.commands.replay.recorded import Campaign, Part, allowed, require
from soma.files.hashes import sha256_file, sha256_json
from soma.forward.engine import Engine
from soma.training.checkpoint import load_tensors, publish
from soma.training.history import HISTORY_COLUMNS
from soma.training.job import check, facts_of, trainer_of
from soma.training.loop import Progress, Trainer
from soma.training.names import LEG, WEIGHTS
from soma.training.states import load_leg

_EXACT = ("update", "expert", "data_sha256", "probes_sha256")
"""Columns of a history that must be equal, not merely agree to some digits."""


def first_leg(campaign: Campaign, part: Part) -> Agreement:
    """Train a part from its start to its first recorded check, and compare its inputs and results."""
    engine, device = part.engine()
    agreement = Agreement(_allowed(part, engine))
    trainer = _trainer(campaign, part, engine, device, agreement)
    last = first_check(part)
    _take(trainer, last)
    _compare_failure(part, trainer, agreement, last)
    _compare_history(part, trainer.progress, agreement, 0, last)
    return agreement


def last_leg(campaign: Campaign, part: Part) -> Agreement:
    """Continue a part from its published resume state, and compare the final weights."""
    require([part.folder / LEG])
    engine, device = part.engine()
    agreement = Agreement(_allowed(part, engine))
    trainer = _trainer(campaign, part, engine, device, agreement)
    with reading(LEG):
        trainer.continue_from(load_leg(part.folder, sha256_json(part.facts)))
    began = trainer.progress.update
    agreement.same("leg", part.run.leg, began)
    _take(trainer, part.run.updates)
    _compare_history(part, trainer.progress, agreement, began, part.run.updates)
    _compare_weights(part, trainer.progress.kept, agreement)
    return agreement


def first_check(part: Part) -> int:
    """Return the first update in a part's history, or the update at which it failed before that."""
    failed = part.record.get("failed_at_update")
    with reading("history.parquet"):
        return int(part.history["update"].min()) if len(part.history) else int(failed or part.run.updates)


def _allowed(part: Part, engine: Engine) -> Allowed | None:
    common = allowed(part, engine, by_torch=part.run.settings.method not in ("spsa", "eggroll"))
    if common is None and part.record["repeats"] == "digits":
        return Allowed(f"recorded as a run of the engine {engine.name} that repeats to some digits only")
    return common


def _trainer(campaign: Campaign, part: Part, engine: Engine, device: torch.device, agreement: Agreement) -> Trainer:
    """Compare everything that a part reads with its record, and return its trainer."""
    files = campaign.files(part)
    with reading("facts"):
        facts = facts_of(part.run, part.name, files, part.record.get("engine", ""))
    for name in facts.keys() - {"run"}:
        agreement.same(name, part.facts.get(name), facts[name])
    with reading("shards_sha256"):
        check(part.run, part.name, files)
    part.check_files(agreement)
    if (part.folder / WEIGHTS).exists():
        with reading(WEIGHTS):
            identity = load_tensors(part.folder / WEIGHTS)[1].get("identity")
        agreement.same("identity", identity, sha256_json(part.facts))
    with reading("start"):
        return trainer_of(part.run, part.name, files, engine, device)


def _take(trainer: Trainer, until: int) -> None:
    """Train up to the update `until`."""
    trainer.progress.ledger.begin()
    with reading("train_loss"):
        trainer.train(lambda: None, save_every=float("inf"), until=until, report_every=float("inf"))


def _compare_failure(part: Part, trainer: Trainer, agreement: Agreement, last: int) -> None:
    failed = part.record.get("failed_at_update")
    agreement.same("failed_at_update", failed if failed and failed <= last else None, trainer.progress.failed_at)


def _compare_history(part: Part, progress: Progress, agreement: Agreement, after: int, last: int) -> None:
    """Compare the rows of updates after `after`, field by field: random draws before values computed from them."""
    with reading("history.parquet"):
        recorded = _rows(part.history, after, last)
    here = _rows(progress.history.table().to_pandas(), after, last)
    agreement.same("rows of history.parquet", len(recorded), len(here))
    measured = [name for name in here if name in recorded and name not in HISTORY_COLUMNS]
    floats = [name for name in (*HISTORY_COLUMNS, *measured) if name not in _EXACT]
    for known, repeated in zip(recorded.to_dict("records"), here.to_dict("records"), strict=True):
        where = {"expert": repeated["expert"], "update": repeated["update"]}
        for name in _EXACT:
            agreement.same(name, known.get(name), repeated[name], **where)
        for name in floats:
            agreement.close(name, known.get(name, float("nan")), repeated[name], **where)


def _rows(history: pd.DataFrame, after: int, last: int) -> pd.DataFrame:
    return history[(history["update"] > after) & (history["update"] <= last)]


def _compare_weights(part: Part, tensors: dict[str, Tensor], agreement: Agreement) -> None:
    """Compare the final weights by the hash of their file, else tensor by tensor."""
    with tempfile.TemporaryDirectory() as folder:
        publish(Path(folder), part.run, part.name, tensors, sha256_json(part.facts), [WEIGHTS])
        if sha256_file(Path(folder) / WEIGHTS) == part.record["weights_sha256"]:
            return
        made = load_tensors(Path(folder) / WEIGHTS)[0]
    require([part.folder / WEIGHTS])
    with reading(WEIGHTS):
        published = load_tensors(part.folder / WEIGHTS)[0]
    agreement.same("names of tensors", sorted(published), sorted(made))
    for name, tensor in published.items():
        agreement.close_tensor(name, tensor, made[name], expert=int(name[:3]), update=part.run.updates)
