"""A finished campaign as described by its folder, without reading its configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from soma.accounting.cost import update_seconds
from soma.accounting.machine import device_name
from soma.commands.replay.comparison import Agreement, Allowed, NotHere
from soma.errors import SomaError
from soma.evaluation.published import Routers
from soma.files import tables
from soma.files.atomic import read_json
from soma.files.hashes import sha256_file
from soma.forward.engine import Engine
from soma.forward.registry import create
from soma.runs import RunSpec, part_experts, recorded
from soma.training.job import Files
from soma.training.names import LEG, MILESTONES, WEIGHTS

FACTS = ("run", "part", "corpus_sha256", "shards_sha256", "engine", "start_sha256", "head_sha256")
"""Fields of `soma.training.job.facts_of` in a run's record."""


@dataclass(frozen=True)
class Part:
    """The published files of a training job."""

    folder: Path
    record: dict[str, Any]
    """`run.json`."""
    run: RunSpec

    @classmethod
    def open(cls, folder: Path) -> Part:
        """Read the record.

        Raises:
            SomaError: if the file is not a valid record.
        """
        return cls(folder, read_json(folder / "run.json"), recorded(folder))

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that the weights depend on, as recorded."""
        return {name: self.record[name] for name in FACTS if name in self.record}

    @cached_property
    def history(self) -> pd.DataFrame:
        return read_rows(self.folder / "history.parquet")

    def seconds(self, updates: int) -> float:
        """Return how long that many updates took when the run was recorded, 0 if unknown."""
        path = self.folder / "cost.json"
        spent = update_seconds(path) if path.exists() else 0.0
        return spent * updates / self.run.updates

    def check_files(self, agreement: Agreement) -> None:
        """Compare the published files present in this clone with the recorded hashes."""
        for file in (WEIGHTS, MILESTONES, LEG):
            field = f"{file.partition('.')[0]}_sha256"
            if field in self.record and (self.folder / file).exists():
                agreement.same(field, self.record[field], sha256_file(self.folder / file))

    def engine(self) -> tuple[Engine, torch.device]:
        """Return the recorded engine if it is available here, else the best available one."""
        name = self.record.get("engine", "auto")
        on_gpu = torch.cuda.is_available() and (name == "triton" or self.record.get("device") == device_name("cuda"))
        device = "cuda" if on_gpu else "cpu"
        try:
            return create(name, device), torch.device(device)
        except SomaError:
            return create("auto", device), torch.device(device)


@dataclass(frozen=True)
class Campaign:
    """The runs of a campaign."""

    results: Path
    runs: dict[str, list[Part]]
    """Parts of every run, in the order of their experts."""

    @classmethod
    def open(cls, results: Path) -> Campaign:
        """Read the records of all runs.

        Raises:
            SomaError: if there are none.
        """
        runs: dict[str, list[Part]] = defaultdict(list)
        for record in sorted((results / "runs").glob("*/*/run.json")):
            runs[record.parent.parent.name].append(Part.open(record.parent))
        if not runs:
            raise SomaError(f"{results} has no recorded runs; name a campaign's folder, or pull it: dvc pull {results}")
        return cls(results, dict(runs))

    @cached_property
    def routers(self) -> Routers:
        return Routers(self.results / "routing")

    def first_seeds(self) -> list[str]:
        """Return the run with the lowest seed of every arm."""
        first: dict[str, str] = {}
        for run in sorted(self.runs, key=lambda run: self.runs[run][0].run.seed):
            first.setdefault(run.rpartition("-s")[0], run)
        return sorted(first.values())

    def has_weights(self, run: str) -> bool:
        """Return True if this clone has the final weights of a run."""
        return all((part.folder / WEIGHTS).exists() for part in self.runs[run])

    def files(self, part: Part) -> Files:
        """Return the files that training a part reads.

        Raises:
            NotHere: if a file is not in this clone.
        """
        run, owned = part.run, set(part_experts(part.name))
        start = self._folders(run.start)
        if run.kind == "continuation":
            start = [folder for folder in start if owned & set(part_experts(folder.name))]
        head = self._folders(run.head_from)[0] if run.head_from else None
        files = Files(self.results / "corpus/train", self.results / "shards" / run.shards, start, head)
        require(files.train / name for name in ("manifest.json", "bytes.bin"))
        require(files.shards / name for name in ("shards.json", "train.npy", "validation.npy"))
        require(folder / WEIGHTS for folder in [*start, *([head] if head else [])])
        return files

    def entry(self, run: str) -> dict[str, Any]:
        """Return the entry with which `Published.open` opens a run."""
        parts = self.runs[run]
        head = self._folders(parts[0].run.head_from)
        require(part.folder / WEIGHTS for part in parts)
        require(folder / WEIGHTS for folder in head[:1])
        runs = self.results / "runs"
        return {
            "run": parts[0].run.model_dump(mode="json"),
            "parts": [str(part.folder.relative_to(runs)) for part in parts],
            "head": str(head[0].relative_to(runs)) if head else None,
        }

    def _folders(self, run: str | None) -> list[Path]:
        """Return the folders of a run's parts, or none if `run` is None."""
        if run is None:
            return []
        if run not in self.runs:
            raise NotHere(self.results / "runs" / run)
        return [part.folder for part in self.runs[run]]


def allowed(part: Part, engine: Engine, by_torch: bool) -> Allowed | None:
    """Return why a replay may differ in the last digits, for reasons common to training and evaluation.

    Args:
        by_torch: true if the replayed arithmetic is torch's with every engine.
    """
    recorded = part.record.get("engine")
    by_kernel = not by_torch and recorded == engine.name and part.record.get("repeats") == "bytes"
    if part.run.settings.method == "eggroll" and not by_kernel:
        return Allowed(
            "torch's arithmetic or another engine's, whose rounding EGGROLL's recurrence amplifies", digits=2
        )
    if by_torch:
        return Allowed("torch's arithmetic, which depends on the processor")
    if recorded != engine.name:
        return Allowed(f"recorded by the engine {recorded}, replayed by {engine.name}")
    if "repeats" not in part.record:
        return Allowed("recorded before run.json had the field `repeats`")
    return None


def require(paths: Iterable[Path]) -> None:
    """Raise `NotHere` for the first missing file."""
    for path in paths:
        if not path.exists():
            raise NotHere(path)


def read_rows(path: Path) -> pd.DataFrame:
    """Read a Parquet file.

    Raises:
        NotHere, SomaError: if it is missing, or damaged.
    """
    require([path])
    return tables.read_rows(path, "pull it again")
