"""The command `soma models`: the runs of a campaign that `soma export` can write as model folders."""

from __future__ import annotations

from pathlib import Path

from soma.commands.export import refusal
from soma.errors import SomaError
from soma.files.tables import read_rows
from soma.runs import recorded
from soma.training.names import WEIGHTS
from soma.workflow.manifest import stays


def models(results: Path) -> None:
    """Print every exportable run with its size, its test loss, and how to get its weights; count the others.

    Raises:
        SomaError: if there are no runs.
    """
    parts: dict[str, list[Path]] = {}
    for record in sorted((results / "runs").glob("*/*/run.json")):
        parts.setdefault(record.parent.parent.name, []).append(record.parent)
    if not parts:
        raise SomaError(f"{results} has no recorded runs; name a campaign's folder, or pull it: dvc pull {results}")
    losses = _losses(results)
    refused = unshipped = 0
    print(f"{'run':36} {'N':>4} {'width':>6} {'parameters':>11} {'test loss':>10}")
    for name, folders in parts.items():
        run = recorded(folders[0])
        if refusal(run):
            refused += 1
            continue
        absent = [folder / WEIGHTS for folder in folders if not (folder / WEIGHTS).exists()]
        if absent and stays(absent[0]):
            unshipped += 1
            continue
        pull = f"  dvc pull {results / 'runs' / name}" if absent else ""
        loss = f"{losses[name]:.3f}" if name in losses else "-"
        print(f"{name:36} {run.experts:4} {run.settings.width:6} {run.parameters:11,} {loss:>10}{pull}")
    print("(test loss: nats per byte after the last update, averaging at most 4 experts; - if Table 4 has no such arm)")
    print(
        f"not listed: {unshipped} runs whose weights are not shipped, {refused} that are no ensembles of LSTM experts"
    )
    print(f"soma export --campaign {results} --run RUN --output FOLDER writes one.")


def _losses(results: Path) -> dict[str, float]:
    """Return the test loss of every run after its last update, at the largest measured k up to 4."""
    path = results / "measurements" / "losses.parquet"
    if not path.exists():
        return {}
    rows = read_rows(path)
    rows = rows[(rows["set"] == "test") & (rows["iterate"] == "last") & (rows["split"] == "") & rows["seed"].notna()]
    rows = rows[rows["k"] <= 4].sort_values(["update", "k"])
    return dict(rows.groupby("run")["loss"].last().items())
