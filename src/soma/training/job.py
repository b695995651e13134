"""The training step: one group of experts of one run, from its last saved state to its published checkpoints."""

from __future__ import annotations

import logging
import platform
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from soma.accounting.machine import device_name
from soma.config.base import read_as
from soma.config.training import Compute
from soma.data.encode import check_encoded
from soma.data.shards import Shards
from soma.data.windows import TrainWindows
from soma.errors import SomaError
from soma.files.atomic import atomic_directory, write_json
from soma.files.hashes import sha256_file, sha256_json
from soma.files.tables import write_table
from soma.forward import distributed
from soma.forward.engine import Engine
from soma.forward.registry import create
from soma.models.experts import Experts
from soma.runs import RunSpec, part_experts, recorded
from soma.training import slurm
from soma.training.checkpoint import Checkpoints
from soma.training.checkpoint import publish as publish_weights
from soma.training.finished import publish, seal, whole
from soma.training.learner import Group, Shard, Start, learner_of
from soma.training.loop import Interrupted, Progress, Trainer
from soma.training.names import COST, FINISHED, HISTORY, HOLDS, LEG, MILESTONES, RECORD, WEIGHTS
from soma.training.states import States, publish_leg

log = logging.getLogger("soma.train")


@dataclass(frozen=True)
class Files:
    """The files that training a part reads."""

    train: Path
    shards: Path
    start: Sequence[Path] = ()
    """Folders of the parts that the experts copy or continue."""
    head: Path | None = None
    """Folder of the part whose frozen head they share."""


def train_part(
    settings: Path,
    part: str,
    train: Path,
    shards: Path,
    runs: Path,
    start: Sequence[Path],
    head: Path | None,
    resume: Path,
    output: Path,
    compute: Path,
    threads: int,
    workers: int,
    nodes: int,
    code: str = "",
) -> None:
    """Train the experts of a part and publish their weights, `history.parquet`, `cost.json` and `run.json`.

    A part that was finished before, from the same settings, data and code, is published again instead.

    Args:
        settings: the run's description (plan.RunSpec as JSON).
        runs: folder of all runs.
        start: parts of the run that the experts copy or continue, if any, relative to `runs`.
        head: part of the run whose frozen head they share, if any, relative to `runs`.
        resume: folder of the resume states, and of the finished part. It is not a declared output, so a failed job
            keeps it; the workflow removes it once it has recorded the part (training.finished).
        workers: number of processes that share the directions.
        nodes: number of nodes on which they run.
        code: the code of the step, as the workflow records it.
    """
    how = read_as(Compute, compute).model_copy(update={"threads": threads})
    distributed.launch(distributed.Layout(workers, nodes, threads, how.wait))
    run = read_as(RunSpec, settings)
    torch.set_num_threads(threads)
    device = distributed.own_device(how.device)
    with distributed.group(device, how.wait):
        files = Files(train, shards, [runs / p for p in start], runs / head if head else None)
        _train(run, part, files, resume, output, how, device, code)


def facts_of(run: RunSpec, part: str, files: Files, engine: str) -> dict[str, Any]:
    """Return everything that a part's weights depend on: settings, hashes of its inputs, and the engine."""
    return {
        "run": run.model_dump(mode="json"),
        "part": part,
        "corpus_sha256": TrainWindows(files.train, run.window).sha256,
        "shards_sha256": sha256_file(files.shards / "shards.json"),
        "engine": engine,
        **_start_hashes(run, part, files),
    }


def trainer_of(run: RunSpec, part: str, files: Files, engine: Engine, device: torch.device) -> Trainer:
    """Return the trainer of a part before its first update."""
    experts = part_experts(part)
    corpus, opened, step = TrainWindows(files.train, run.window), Shards.open(files.shards), round(1 / run.subset)
    own = [opened.windows(run.shard(e), corpus) for e in experts]
    shards = [Shard(windows, train[::step], validation) for windows, train, validation in own]
    group = Group(run, experts, shards, corpus.text)
    return Trainer(learner_of(run.settings.method)(group, engine, device, _start(run, part, files)))


def check(run: RunSpec, part: str, files: Files) -> None:
    """Raise `SomaError` unless the text that a part trains on has the recorded hashes; reads no other."""
    Shards.open(files.shards).verify([run.shard(e) for e in part_experts(part)], TrainWindows(files.train, run.window))
    if learner_of(run.settings.method).streams:
        check_encoded(files.train, "train")


def repeats(run: RunSpec, engine: Engine) -> Literal["bytes", "digits"]:
    """Return what is equal if a run is repeated on another processor with fused multiply-add."""
    return "bytes" if run.settings.method in ("spsa", "eggroll") and engine.exact else "digits"


def _train(
    run: RunSpec, part: str, files: Files, resume: Path, output: Path, how: Compute, device: torch.device, code: str
) -> None:
    engine = create(how.engine, how.device)
    if distributed.workers() > 1:
        engine = distributed.DistributedEngine(engine)
    facts = facts_of(run, part, files, engine.name)
    states, finished = States(resume, facts), resume / FINISHED
    identity = sha256_json(facts | {"code": code})
    leader = distributed.rank() == 0
    with states.alone() if leader else nullcontext():
        distributed.barrier()  # the other workers wait as well
        if whole(finished, identity):
            if leader:
                log.info(f"{run.id} {part}: trained before from the same settings, data and code; published again")
        else:
            trainer = trainer_of(run, part, files, engine, device)
            _continue(trainer, part, states, engine, how, device_name(device))
            if leader:
                with atomic_directory(finished, HOLDS) as folder:
                    _write(folder, trainer.progress, run, part, facts, how, engine, device_name(device))
                    seal(folder, identity)
        if leader:
            publish(finished, output)
            states.remove()
        distributed.barrier()  # no worker may judge the finished part while another replaces it


def _continue(trainer: Trainer, part: str, states: States, engine: Engine, how: Compute, device: str) -> None:
    """Train from the last saved state to the end of the budget."""
    leader = distributed.rank() == 0
    if leader:
        nodes = distributed.nodes()
        workers = f"{distributed.workers()} worker(s)" if distributed.workers() > 1 else ""
        workers += f" on {nodes} nodes, " if nodes > 1 else ", " if workers else ""
        log.info(f"{trainer.run.id} {part}: engine {engine.name} on {device}, {workers}{how.threads} thread(s)")
    states.restore(trainer)
    distributed.barrier()  # no worker may write the state before all have read it
    trainer.progress.ledger.begin()
    stop = _StopRequest()
    try:
        trainer.train(
            (lambda: states.save(trainer)) if leader else (lambda: trainer.state()),  # which the leader collects
            save_every=how.save_every,
            should_stop=lambda: stop.asked,
            agree=distributed.any_worker,
            report_every=10.0 if leader else float("inf"),
        )
    except SomaError as error:
        kept = f"the last good state is {states.newest}" if states.newest.exists() else "no state was saved before"
        raise SomaError(f"{error} ({kept})") from None
    except Interrupted as note:
        again = leader and stop.terminated and slurm.requeue()
        raise SomaError(f"{note}; {'Slurm starts it again' if again else 'start it again to continue'}.") from None


def _write(
    folder: Path,
    progress: Progress,
    run: RunSpec,
    part: str,
    facts: dict[str, Any],
    compute: Compute,
    engine: Engine,
    device: str,
) -> None:
    """Write the files of a finished part."""
    identity = sha256_json(facts)
    publish_weights(folder, run, part, progress.kept, identity)
    if progress.leg is not None:
        publish_leg(folder, run, part, progress.leg, identity)
    write_table(folder / HISTORY, progress.history.table())
    cost = {
        "ledger": progress.ledger.to_json(),
        "device": device,
        "threads": compute.threads,
        "devices": distributed.workers(),
        "engine": facts["engine"],
        "experts": len(part_experts(part)),
    }
    write_json(folder / COST, cost)
    record = facts | {
        "weights_sha256": sha256_file(folder / WEIGHTS),
        "milestones_sha256": sha256_file(folder / MILESTONES),
        "failed_at_update": progress.failed_at,
        "repeats": repeats(run, engine),
        "device": device,
        "threads": compute.threads,
        **versions(),
    }
    if progress.leg is not None:
        record["leg_sha256"] = sha256_file(folder / LEG)
    write_json(folder / RECORD, record)


def versions() -> dict[str, str]:
    """Return the versions of the software, and the commit of the code."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "soma": version("soma-repro"),
        "commit": _commit(),
    }


def _start_hashes(run: RunSpec, part: str, files: Files) -> dict[str, str]:
    """Return the hashes of the files that the experts of a part start from."""
    if not files.start:
        return {}
    start = [sha256_file(folder / WEIGHTS) for folder in _started_from(run, part, files)]
    head = _other_head(run, files)
    return {"start_sha256": sha256_json(start)} | ({"head_sha256": sha256_file(head / WEIGHTS)} if head else {})


def _start(run: RunSpec, part: str, files: Files) -> Start | None:
    """Return the weights that the experts of a part start from, None if they start at random."""
    if not files.start:
        return None
    continues = run.kind == "continuation"
    folders = _started_from(run, part, files)
    source = _source(run, run.start, folders[0])
    opened = Checkpoints.open(source, {f.name: f for f in folders}, part_experts(part) if continues else range(1))
    head = _other_head(run, files)
    heads = Checkpoints.open(_source(run, run.head_from, head), {head.name: head}) if head else opened
    weights = opened.bodies(source.updates, "last"), heads.heads(heads.run.updates, "last")
    experts = Experts.of(run.model, *weights)
    return Start(experts, opened.memory(), source.updates) if continues else Start(experts)


def _started_from(run: RunSpec, part: str, files: Files) -> list[Path]:
    """Return the folders that a part starts from: for a continuation, only those that hold its experts."""
    if run.kind != "continuation":
        return list(files.start)
    own = set(part_experts(part))
    return [folder for folder in files.start if own & set(part_experts(folder.name))]


def _other_head(run: RunSpec, files: Files) -> Path | None:
    """Return the part whose head is shared, if it belongs to a different run than the bodies."""
    return files.head if run.head_from != run.start else None


def _source(run: RunSpec, expected: str | None, part: Path) -> RunSpec:
    """Return the run that published a part."""
    source = recorded(part)
    if source.id != expected or source.model != run.model:
        raise SomaError(f"{part} holds {source.id}, but {run.id} needs {expected}; run that rule again.")
    return source


class _StopRequest:
    """A request, by SIGTERM or SIGINT, to save and stop after the current update."""

    def __init__(self) -> None:
        self.asked = False
        self.terminated = False
        """By SIGTERM, as before a time limit."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: object) -> None:
        self.asked = True
        self.terminated |= number == signal.SIGTERM


def _commit() -> str:
    """Return the commit of the code, with `+` if the tree differs from it; empty outside a repository."""
    import subprocess

    def git(*words: str) -> str:
        run = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return run.stdout.strip()

    commit = git("rev-parse", "HEAD")
    return commit + ("+" if commit and git("status", "--porcelain", "--untracked-files=no") else "")
