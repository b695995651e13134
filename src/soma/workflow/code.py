"""The code behind trained runs, evaluations and measurements, as the rules record it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from soma.catalogue import MEASUREMENTS
from soma.config.training import Compute
from soma.files.atomic import read_json
from soma.plan import Plan
from soma.runs import RunSpec
from soma.workflow.digests import code


class RunCode:
    """The code behind trained runs, which depends on the engine that trained each part.

    The engine is the one named in the run's record or, before there is one, the one that the configuration implies;
    never the one that happens to be installed here, since jobs may run elsewhere.
    """

    def __init__(self, plan: Plan, runs: Path) -> None:
        """Take a plan and `runs`, the folder of all runs."""
        self.plan, self.runs = plan, runs

    def train(self, run: RunSpec, part: str) -> str:
        """Return the code of a training job, in the format of `soma.workflow.digests.code`."""
        if run.settings.method == "eggroll":
            return code("train/eggroll")
        return _CodeOfRecord(lambda: code(f"train/{run.settings.method}/{self._engine(f'{run.id}/{part}')}"))

    def evaluate(self, runs: Iterable[RunSpec]) -> str:
        """Return the code of an evaluation of runs."""
        evaluated = list(runs)
        computes = {run.settings.method for run in evaluated if run.family == "module"}
        computes |= self._engines(run for run in evaluated if run.family == "lstm")
        return code(f"evaluate/{'+'.join(sorted(computes))}" if computes else "evaluate")

    def measure(self, name: str) -> str:
        """Return the code of a measurement at the checkpoints of runs."""
        if (
            MEASUREMENTS[name].computes_with == "a runner"
        ):  # it uses the fastest runner for the device, which no run's record names
            return code(f"measure-{name}/{'cpu' if self.plan.config.compute.device == 'cpu' else 'triton'}+torch")
        return code(f"measure-{name}/{'+'.join(sorted(self._engines(self.plan.measured_runs(name))))}")

    def _engines(self, runs: Iterable[RunSpec]) -> set[str]:
        return {self._engine(folder) for run in runs for folder in self.plan.folders(run)}

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

    determine: Callable[[], str]

    def __new__(cls, determine: Callable[[], str]) -> _CodeOfRecord:
        self = super().__new__(cls, determine())
        self.determine = determine
        return self

    def __repr__(self) -> str:
        return repr(self.determine())
