"""Python side of the Snakefile: the configuration, the settings of each rule, and the code behind runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from soma.config import Config, merge, read_yaml, resolve
from soma.digests import code
from soma.manifest import read_json, sha256_json, write_json
from soma.plan import Plan
from soma.runs import RunSpec
from soma.settings.training import Compute


def campaign_config(base: Path, overlay: Mapping[str, Any]) -> Config:
    """Merge Snakemake's `--configfile` and `--config` values over the base file."""
    return resolve(merge(read_yaml(base), overlay), where="the configuration")


class Settings:
    """The settings of every rule, one JSON file each; a rule's `params` hold the digest of the settings it reads."""

    def __init__(self, values: Mapping[str, Any], directory: Path) -> None:
        self.values, self.directory = values, directory

    def digest(self, name: str) -> str:
        return sha256_json(self.values[name])

    def path(self, name: str) -> str:
        return str(self.directory / f"{name}.json")

    def write(self) -> None:
        """Write the files whose content changed."""
        for name in self.values:
            path = Path(self.path(name))
            mark = path.with_suffix(".sha256")
            if not (path.exists() and mark.exists() and mark.read_text() == self.digest(name)):
                write_json(path, self.values[name])
                mark.write_text(self.digest(name))


class RunCode:
    """The code behind trained runs, which depends on the engine that trained each part.

    The engine is the one named in the run's record or, before there is one, the one that the configuration implies;
    never the one that happens to be installed here, since jobs may run elsewhere.
    """

    def __init__(self, plan: Plan, runs: Path) -> None:
        """Take a plan and `runs`, the folder of all runs."""
        self.plan, self.runs = plan, runs

    def train(self, run: RunSpec, part: str) -> str:
        """Return the code of a training job, in the format of `soma.digests.code`."""
        if run.settings.method == "eggroll":
            return code("train/eggroll")
        return _CodeOfRecord(lambda: code(f"train/{run.settings.method}/{self._engine(f'{run.id}/{part}')}"))

    def evaluate(self, runs: Iterable[RunSpec]) -> str:
        """Return the code of an evaluation of runs."""
        engines = self._engines(run for run in runs if run.settings.method != "eggroll")
        return code(f"evaluate/{engines}" if engines else "evaluate")

    def measure(self, name: str) -> str:
        """Return the code of a measurement at the checkpoints of runs."""
        if name == "inference":  # it uses the fastest runner for the device, which no run's record names
            return code(f"measure-inference/{'cpu' if self.plan.config.compute.device == 'cpu' else 'triton'}+torch")
        return code(f"measure-{name}/{self._engines(self.plan.measured_runs(name))}")

    def _engines(self, runs: Iterable[RunSpec]) -> str:
        return "+".join(sorted({self._engine(folder) for run in runs for folder in self.plan.folders(run)}))

    def _engine(self, folder: str) -> str:
        """Return the engine of one part of a run."""
        record = self.runs / folder / "run.json"
        try:
            return _recorded_engine(record, record.stat().st_mtime_ns)
        except FileNotFoundError:
            return _meant_engine(self.plan.config.compute)


@cache
def _recorded_engine(record: Path, changed: int) -> str:
    """Return the engine named in a run's record, which is read again only after it changes."""
    return str(read_json(record)["engine"])


def _meant_engine(compute: Compute) -> str:
    """Return the configured engine; `auto` means the one made for the device."""
    if compute.engine != "auto":
        return compute.engine
    return "triton" if compute.device.startswith("cuda") else "cpu" if compute.device == "cpu" else "torch"


class _CodeOfRecord(str):
    """The code of a training job, determined again whenever Snakemake writes it down, which it does with `repr`.

    Only after the job is it known which engine `auto` chose on the machine that ran it.
    """

    found: Callable[[], str]

    def __new__(cls, found: Callable[[], str]) -> _CodeOfRecord:
        self = super().__new__(cls, found())
        self.found = found
        return self

    def __repr__(self) -> str:
        return repr(self.found())
