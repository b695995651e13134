"""The runs of a campaign that `soma export` can write as model folders, and the best of them: `soma models`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from soma.commands.export import refusal
from soma.errors import SomaError
from soma.files.tables import read_rows
from soma.runs import RunSpec, recorded
from soma.training.names import WEIGHTS
from soma.workflow.manifest import stays

_EQUAL = 0.01
"""Relative difference up to which two runs cost equal operations: a budget is rounded to whole updates."""


@dataclass(frozen=True)
class Trained:
    """A run of a campaign."""

    name: str
    run: RunSpec
    absent: tuple[Path, ...]
    """Files of weights that are not in this clone."""

    @property
    def shipped(self) -> bool:
        """Return whether the weights are here or can be pulled."""
        return not (self.absent and stays(self.absent[0]))


def models(results: Path) -> None:
    """Print every exportable run with its size, its test loss, and how to get its weights; count the others.

    Raises:
        SomaError: if there are no runs.
    """
    losses = _losses(results, "test")
    refused = unshipped = 0
    known = list(_trained(results))
    print(f"{'run':36} {'N':>4} {'width':>6} {'parameters':>11} {'test loss':>10}")
    for one in known:
        if refusal(one.run):
            refused += 1
            continue
        if not one.shipped:
            unshipped += 1
            continue
        pull = f"  dvc pull {results / 'runs' / one.name}" if one.absent else ""
        loss = f"{losses[one.name]:.3f}" if one.name in losses else "-"
        run = one.run
        print(f"{one.name:36} {run.experts:4} {run.settings.width:6} {run.parameters:11,} {loss:>10}{pull}")
    print("(test loss: nats per byte after the last update, averaging at most 4 experts; - if Table 4 has no such arm)")
    print(
        f"not listed: {unshipped} runs whose weights are not shipped, {refused} that are no ensembles of LSTM experts"
    )
    print(f"soma export --campaign {results} --run RUN --output FOLDER writes one.")


def shown(results: Path) -> list[str]:
    """Choose the runs of a campaign to show: its best without backpropagation, and a monolith of equal operations.

    The best has the lowest ensemble validation loss after its last update. The monolith is one model as wide as one of
    its experts, of the same seed if there is one; no loss chooses it, and there may be none.

    Raises:
        SomaError: if no run that can be exported has a measured validation loss.
    """
    usable = [one for one in _trained(results) if not refusal(one.run) and one.shipped and _zeroth_order(one.run)]
    losses = _losses(results, "validation")
    measured = [one for one in usable if one.name in losses]
    if not measured:
        raise SomaError(
            f"{results} has no run to export with a measured validation loss (measurements/losses.parquet); "
            f"get it with `dvc pull {results}`, or name a model's folder with --model."
        )
    best = min(measured, key=lambda one: (losses[one.name], one.name)).run
    alike = [one.run for one in usable if _is_monolith_of(one.run, best)]
    beside = sorted(alike, key=lambda run: (run.seed != best.seed, run.seed, run.id))[:1]
    return [best.id, *(run.id for run in beside)]


def _zeroth_order(run: RunSpec) -> bool:
    return run.settings.method != "bptt"


def _is_monolith_of(run: RunSpec, best: RunSpec) -> bool:
    """Return whether a run is one model of an expert's size, trained by as many operations as the whole ensemble."""
    sizes = {(r.settings.width, r.settings.depth, r.settings.embedding) for r in (run, best)}
    costs = [r.operations(r.updates) for r in (run, best)]
    return best.experts > 1 and run.experts == 1 and len(sizes) == 1 and abs(costs[0] / costs[1] - 1) <= _EQUAL


def _trained(results: Path) -> Iterator[Trained]:
    """Yield the recorded runs of a campaign by name.

    Raises:
        SomaError: if there are none.
    """
    parts: dict[str, list[Path]] = {}
    for record in sorted((results / "runs").glob("*/*/run.json")):
        parts.setdefault(record.parent.parent.name, []).append(record.parent)
    if not parts:
        raise SomaError(f"{results} has no recorded runs; name a campaign's folder, or pull it: dvc pull {results}")
    for name, folders in parts.items():
        absent = tuple(folder / WEIGHTS for folder in folders if not (folder / WEIGHTS).exists())
        yield Trained(name, recorded(folders[0]), absent)


def _losses(results: Path, set_: str) -> dict[str, float]:
    """Return the loss of every run on a set after its last update, at the largest measured k up to 4."""
    path = results / "measurements" / "losses.parquet"
    if not path.exists():
        return {}
    rows = read_rows(path)
    rows = rows[(rows["set"] == set_) & (rows["iterate"] == "last") & (rows["split"] == "") & rows["seed"].notna()]
    rows = rows[rows["k"] <= 4].sort_values(["update", "k"])
    return dict(rows.groupby("run")["loss"].last().items())
