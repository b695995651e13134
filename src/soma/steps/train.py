"""The training step: one group of experts of one run, from wherever it stopped to its published checkpoints."""

from __future__ import annotations

import logging
import platform
import shutil
import signal
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from soma.data.windows import TrainWindows
from soma.errors import SomaError
from soma.forward import distributed
from soma.forward.engine import create
from soma.machine import device_name
from soma.manifest import atomic_path, read_json, sha256_file, sha256_json, write_json
from soma.routing.shards import Shards
from soma.runs import RunSpec, part_experts
from soma.settings.training import Compute
from soma.training.checkpoint import MILESTONES, WEIGHTS, Checkpoints, publish
from soma.training.learner import Shard, Start, learner_of
from soma.training.loop import HISTORY_COLUMNS, Interrupted, Progress, Trainer, restore_state, save_state

log = logging.getLogger("soma.train")


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
) -> None:
    """Train the experts of a part and publish their weights, `history.parquet`, `cost.json` and `run.json`.

    Args:
        settings: the run's description (plan.RunSpec as JSON).
        runs: folder of all runs.
        start: parts of the run that the experts copy or continue, if there is one, below `runs`.
        head: part of the run whose frozen head they share, if there is one, below `runs`.
        resume: folder of the resume state; it is no declared output, so a failed job keeps it, and it goes at the end.
        workers: processes that share the directions.
    """
    distributed.launch(workers)
    run = RunSpec.model_validate(read_json(settings))
    how = Compute.model_validate(read_json(compute) | {"threads": threads})
    torch.set_num_threads(threads)
    device = distributed.own_device(how.device)
    with distributed.group(device):
        weights, origin = _start(run, part_experts(part), [runs / p for p in start], runs / head if head else None)
        _train(run, part, train, shards, weights, origin, resume, output, how, device)


def _train(
    run: RunSpec,
    part: str,
    train: Path,
    shards: Path,
    start: Start | None,
    origin: dict[str, str],
    resume: Path,
    output: Path,
    how: Compute,
    device: torch.device,
) -> None:
    engine = create(how.engine, how.device)
    if distributed.workers() > 1:
        engine = distributed.DistributedEngine(engine, how.exchange)
    experts = part_experts(part)
    windows, opened = TrainWindows(train, run.window), Shards.open(shards)
    step = round(1 / run.subset)
    own = [Shard(opened.train(run.shard(e))[::step], opened.validation(run.shard(e))) for e in experts]
    facts = {
        "run": run.model_dump(mode="json"),
        "part": part,
        "corpus_sha256": windows.sha256,
        "shards_sha256": sha256_file(shards / "shards.json"),
        "engine": engine.name,
        **origin,
    }
    learner = learner_of(run.settings.method)(run, experts, windows, own, engine, device, start)
    trainer = Trainer(run, experts, windows, own, learner)
    identity = sha256_json(facts)
    state_file = resume / "state.safetensors"
    leader = distributed.rank() == 0
    if leader:
        workers = f"{distributed.workers()} worker(s), " if distributed.workers() > 1 else ""
        log.info(f"{run.id} {part}: engine {engine.name} on {device_name(device)}, {workers}{how.threads} thread(s)")
    restore_state(state_file, trainer, identity)
    distributed.barrier()  # nobody may write the state before all have read it
    trainer.progress.ledger.begin()
    stop = _StopRequest()

    def save() -> None:
        if leader:
            save_state(state_file, trainer, identity)

    try:
        trainer.train(
            save,
            save_every=how.save_every,
            should_stop=lambda: distributed.any_worker(stop.asked),
            report_every=10.0 if leader else float("inf"),
        )
    except SomaError as error:
        kept = f"the last good state is {state_file}" if state_file.exists() else "no state was saved before"
        raise SomaError(f"{error} ({kept})") from None
    except Interrupted as note:
        raise SomaError(f"{note}; start it again to continue.") from None
    if leader:
        _publish(trainer.progress, run, part, facts, output, how, device)
        shutil.rmtree(resume, ignore_errors=True)


def _publish(
    progress: Progress,
    run: RunSpec,
    part: str,
    facts: dict[str, Any],
    output: Path,
    compute: Compute,
    device: torch.device,
) -> None:
    publish(output, run, part, progress.kept, sha256_json(facts))
    with atomic_path(output / "history.parquet") as path:
        rows = [(*row, *drawn) for row, drawn in zip(progress.history, progress.drawn, strict=True)]
        pd.DataFrame(rows, columns=list(HISTORY_COLUMNS)).astype({"update": int, "expert": int}).to_parquet(path)
    name = device_name(device)
    cost = {
        "ledger": progress.ledger.to_json(),
        "device": name,
        "threads": compute.threads,
        "devices": distributed.workers(),
        "engine": facts["engine"],
        "experts": len(part_experts(part)),
    }
    write_json(output / "cost.json", cost)
    record = facts | {
        "weights_sha256": sha256_file(output / WEIGHTS),
        "milestones_sha256": sha256_file(output / MILESTONES),
        "failed_at_update": progress.failed_at,
        "device": name,
        "threads": compute.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "soma": version("soma-repro"),
        "commit": _commit(),
    }
    write_json(output / "run.json", record)


def _start(
    run: RunSpec, experts: range, start: Sequence[Path], head: Path | None
) -> tuple[Start | None, dict[str, str]]:
    """What the experts of a part start from, and the hashes of the files that it comes from."""
    if not start:
        return None, {}
    source, files = _source(run, run.start, start)
    continues = run.kind == "continuation"
    if continues:
        files = {part: folder for part, folder in files.items() if set(part_experts(part)) & set(experts)}
    hashes = {"start_sha256": sha256_json([sha256_file(folder / WEIGHTS) for folder in files.values()])}
    opened = Checkpoints.open(source, files, experts if continues else range(1))
    heads = opened
    if head is not None and run.head_from != run.start:
        owner, shared = _source(run, run.head_from, [head])
        heads = Checkpoints.open(owner, shared)
        hashes["head_sha256"] = sha256_file(head / WEIGHTS)
    weights = opened.bodies(source.updates, "last"), heads.heads(heads.run.updates, "last")
    if not continues:
        return Start(*weights), hashes
    return Start(*weights, opened.memory(), source.updates), hashes


def _source(run: RunSpec, expected: str | None, parts: Sequence[Path]) -> tuple[RunSpec, dict[str, Path]]:
    """The run that published those parts, and their folders by part name."""
    source = RunSpec.model_validate(read_json(parts[0] / "run.json")["run"])
    if source.id != expected or source.model != run.model:
        raise SomaError(f"{parts[0]} holds {source.id}, but {run.id} needs {expected}; run that rule again.")
    return source, {part.name: part for part in parts}


class _StopRequest:
    """SIGTERM or SIGINT asks the loop to save and stop after the current update."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, *_: object) -> None:
        self.asked = True


def _commit() -> str:
    """The commit that the code was at, with `+` if the tree differed; empty outside a repository."""
    import subprocess

    def git(*words: str) -> str:
        run = subprocess.run(["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        return run.stdout.strip()

    commit = git("rev-parse", "HEAD")
    return commit + ("+" if commit and git("status", "--porcelain", "--untracked-files=no") else "")
