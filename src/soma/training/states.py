"""Resume states on disk: two generations, none of which is ever lost to another run, and one writer at a time.

A folder belongs to one part of one run. `state.safetensors` is the newest state and `previous.safetensors` the one
before; a damaged one is put aside, and so is one of other settings or data, under its own name, where it is found again
if the settings come back.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from soma.accounting.cost import Ledger
from soma.errors import SomaError
from soma.files.atomic import remove_directory
from soma.files.hashes import sha256_json
from soma.runs import RunSpec
from soma.training.checkpoint import load_tensors, save_tensors
from soma.training.history import History
from soma.training.loop import State, Trainer
from soma.training.names import DAMAGED, HOLDS, LEG, OTHERS, PREVIOUS, STATE, lock_of

log = logging.getLogger("soma.train")

_FORMAT = 2


class States:
    """The resume states of one part of one run."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Take a folder and everything that the part's weights depend on, among them the `engine`."""
        self.folder, self.facts = folder, facts

    @property
    def newest(self) -> Path:
        return self.folder / STATE

    @cached_property
    def identity(self) -> str:
        return sha256_json(self.facts)

    @cached_property
    def _but_engine(self) -> str:
        return sha256_json({key: value for key, value in self.facts.items() if key != "engine"})

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second process out for the block; wait if one is in.

        It may be a job whose main process died, or one that a cluster still runs. What it finishes is not lost.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        owner, lock = self.folder.with_name(f".{self.folder.name}.owner"), FileLock(lock_of(self.folder))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            who = owner.read_text(encoding="utf-8") if owner.exists() else "another process"
            log.warning(f"waiting for {who}, which trains this part; stop it to go on from its last saved state")
            lock.acquire()
        try:
            owner.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
            for left in self.folder.glob(".*"):  # by a process that was killed while it wrote
                remove_directory(left, HOLDS) if left.is_dir() else left.unlink()
            yield
        finally:
            owner.unlink(missing_ok=True)
            lock.release()

    def save(self, trainer: Trainer) -> None:
        """Write the newest state; the one before becomes the previous one."""
        progress, state = trainer.progress, trainer.state()
        leg = progress.leg or State({}, {})
        groups = {
            "history": progress.history.tensors(),
            "average": progress.average,
            "kept": progress.kept,
            "leg": leg.tensors,
        }
        tensors = dict(state.tensors)
        for group, members in groups.items():
            tensors |= {f"{group}/{name}": tensor for name, tensor in members.items()}
        facts = {
            **state.facts,
            "format": _FORMAT,
            "identity": self.identity,
            "engine": self.facts["engine"],
            "but_engine": self._but_engine,
            "ledger": progress.ledger.to_json(),
            "leg": leg.facts,
        }
        if self.newest.exists():
            os.replace(self.newest, self.folder / PREVIOUS)
        save_tensors(self.newest, tensors, facts)

    def remove(self) -> None:
        """Remove the states of a part that is finished; those of other settings stay."""
        for name in (STATE, PREVIOUS):
            (self.folder / name).unlink(missing_ok=True)

    def restore(self, trainer: Trainer) -> bool:
        """Continue from the newest whole state of the same run, and return whether there was one.

        Raises:
            SomaError: if the state is of the same run and data, but of another engine.
        """
        loaded = self._load(self.newest)
        aside = self.folder / _aside(self.identity)
        if loaded is None and aside.exists():  # the newest of this run when other settings took its place
            os.replace(aside, self.newest)
            loaded = self._load(self.newest)
        loaded = loaded or self._load(self.folder / PREVIOUS)
        if loaded:
            self._take(trainer, *loaded)
        return loaded is not None

    def _load(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Read a state, or put it aside if it cannot be used."""
        if not path.exists():
            return None
        try:
            tensors, facts = load_tensors(path)
        except SomaError as error:
            log.warning(f"an unusable resume state is put aside as {DAMAGED}: {error}")
            os.replace(path, self.folder / DAMAGED)
            return None
        if facts.get("format") != _FORMAT:
            log.warning(f"starting over, since {path} is a state of another version; it is put aside as {DAMAGED}")
            os.replace(path, self.folder / DAMAGED)
            return None
        if facts["identity"] == self.identity:
            return tensors, facts
        if facts["but_engine"] == self._but_engine:
            raise SomaError(
                f"{path} was saved by the engine `{facts['engine']}`, and the engine here is `{self.facts['engine']}`, "
                f"which gives other bytes; set compute.engine to {facts['engine']}, or move it away and start over."
            )
        aside = self.folder / _aside(facts["identity"])
        if path.name == PREVIOUS and aside.exists():
            return None  # the newer one of that run
        log.warning(f"starting over, since {path} belongs to other settings or data; it is kept as {aside.name}")
        os.replace(path, aside)
        return None

    def _take(self, trainer: Trainer, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        progress = trainer.progress
        trainer.continue_from(State(dict(tensors), dict(facts)))
        progress.history = History.from_tensors(_group(tensors, "history"))
        progress.ledger = Ledger.from_json(facts["ledger"])
        progress.kept = _group(tensors, "kept")
        progress.leg = State(_group(tensors, "leg"), facts["leg"]) if facts["leg"] else None
        for name, tensor in _group(tensors, "average").items():
            progress.average[name].copy_(tensor)
        log.info(f"continuing after update {progress.update}")


def publish_leg(folder: Path, run: RunSpec, part: str, leg: State, identity: str) -> None:
    """Write the state from which the last leg of a part can be replayed."""
    save_tensors(folder / LEG, leg.tensors, {"run": run.id, "part": part, "identity": identity, "state": leg.facts})


def load_leg(folder: Path, identity: str) -> State:
    """Read a state that `publish_leg` wrote.

    Raises:
        SomaError: if the file is missing or damaged, or belongs to another run, other settings, data or engine.
    """
    tensors, facts = load_tensors(folder / LEG)
    if facts["identity"] != identity:
        raise SomaError(f"{folder / LEG} belongs to other settings, data or engine than {folder / 'run.json'} records.")
    return State(tensors, facts["state"])


def _aside(identity: str) -> str:
    return OTHERS.replace("*", identity[:16])


def _group(tensors: Mapping[str, Tensor], group: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `group/`, by the rest of their names."""
    return {name.removeprefix(f"{group}/"): t for name, t in tensors.items() if name.startswith(f"{group}/")}
