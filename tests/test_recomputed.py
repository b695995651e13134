"""The main numbers of `results/small`, computed a second time from the published rows by code that shares nothing.

Nothing is imported from `soma`: losses, differences and intervals over seeds are written here once more, from their
definitions in docs/paper.md and the rule printed under the claims.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import t

ROOT = Path(__file__).parent.parent
SMALL = ROOT / "results/small"

Curves = dict[str, dict[int, float]]
"""Loss of the last iterate with the run's own number of active experts, by run and update."""


def _rows(folder: Path) -> list[dict]:
    return [row for file in sorted(folder.rglob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def _table(name: str) -> list[dict[str, dict[str, str]]]:
    """Return a published table: its cells, with their numbers and runs, by column."""
    with (SMALL / f"tables/{name}.csv").open() as file:
        rows: dict[str, dict[str, dict[str, str]]] = {}
        for cell in csv.DictReader(file):
            rows.setdefault(cell["row"], {})[cell["column"]] = cell
    return list(rows.values())


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows as DVC ships them, whether or not this checkout has pulled them."""
    folder = tmp_path_factory.mktemp("published")
    for name in ("evaluation", "measurements"):
        dvc = [sys.executable, "-m", "dvc", "get", "--quiet", str(ROOT), f"results/small/{name}"]
        subprocess.run([*dvc, "-o", str(folder / name)], cwd=folder, check=True)
    return folder


def _curves(folder: Path) -> Curves:
    """Return losses in nats per byte: the sum over documents over the sum of their bytes."""
    sums: dict[tuple[str, int], dict[int, list[float]]] = {}
    for row in _rows(folder):
        if row["iterate"] == "last":
            total = sums.setdefault((row["run"], row["update"]), {}).setdefault(row["k"], [0.0, 0])
            total[0] += row["nats"]
            total[1] += row["bytes"]
    losses: Curves = {}
    for (run, update), by_k in sums.items():
        nats, count = by_k[max(k for k in by_k if k <= 4)]  # every arm averages four experts, or all if there are fewer
        losses.setdefault(run, {})[update] = nats / count
    return losses


@pytest.fixture(scope="module")
def curves(published: Path) -> Curves:
    return _curves(published / "evaluation/test")


def _arm(run: str) -> str:
    return run.rpartition("-s")[0]


def _sides(cell: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the runs of a published difference: ours, then theirs, seed by seed."""
    runs = cell["run"].split()
    ours = [run for run in runs if _arm(run) == _arm(runs[0])]
    return ours, [run for run in runs if run not in ours]


def _end(curve: dict[int, float]) -> float:
    return curve[max(curve)]


def _half_width(values: np.ndarray, level: float) -> float:
    """Return half the width of Student's interval of the mean."""
    return float(t.ppf(1 - level / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def _holm(differences: list[np.ndarray]) -> list[float]:
    """Return the level of each difference's interval: 5 % over the number of differences that are not yet rejected."""
    ps = [2 * t.sf(abs(d.mean()) / d.std(ddof=1) * len(d) ** 0.5, len(d) - 1) for d in differences]
    levels, level, rejects = [0.0] * len(ps), 0.05, True
    for rank, i in enumerate(np.argsort(ps)):
        level = 0.05 / (len(ps) - rank) if rejects else level
        levels[i], rejects = level, rejects and ps[i] <= level
    return levels


def _check(
    cells: list[tuple[dict[str, str], dict[str, str]]], differences: list[np.ndarray], levels: list[float]
) -> None:
    """Compare published means and intervals over seeds with computed ones."""
    assert cells
    assert len(cells) == len(differences)
    for (mean, over_seeds), values, level in zip(cells, differences, levels, strict=True):
        half = _half_width(values, level)
        theirs = [float(mean["value"]), float(over_seeds["low"]), float(over_seeds["high"])]
        assert theirs == pytest.approx([values.mean(), values.mean() - half, values.mean() + half], abs=1e-9), mean


def _claim(name: str) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Return the published mean and interval over seeds of every difference of a claim."""
    rows = [row for row in _table("claims") if row["claim"]["text"] == name]
    return [(row["measured [over documents]"], row["[over seeds]"]) for row in rows]


def test_table_4(curves: Curves) -> None:
    cells = [row["test loss"] for row in _table("table4") if row["test loss"]["run"]]
    assert len(cells) > 4
    for cell in cells:
        assert float(cell["value"]) == pytest.approx(np.mean([_end(curves[r]) for r in cell["run"].split()]), abs=1e-12)


@pytest.mark.parametrize("claim", ["C1a", "C1b"])
def test_equal_total_size(curves: Curves, claim: str) -> None:
    cells = _claim(claim)
    sides = [_sides(mean) for mean, _ in cells]
    differences = [np.array([_end(curves[a]) - _end(curves[b]) for a, b in zip(*s, strict=True)]) for s in sides]
    _check(cells, differences, _holm(differences))


@pytest.mark.parametrize("control", ["B1", "B2"])
def test_controls(curves: Curves, control: str) -> None:
    rows = [row for row in _table("controls") if row["control"]["text"] == control]
    cells = [(row["first minus second"], row["over seeds"]) for row in rows]
    sides = [_sides(mean) for mean, _ in cells]
    differences = [np.array([_end(curves[a]) - _end(curves[b]) for a, b in zip(*s, strict=True)]) for s in sides]
    _check(cells, differences, [0.05] * len(cells))


def test_error_of_an_estimate(published: Path) -> None:
    """C7: logarithms of ratios of ||g_hat - g||^2 / ||g||^2, and of device time, at the end of training."""
    rows = pq.read_table(published / "measurements/reference.parquet").to_pylist()
    last = {run: max(r["update"] for r in rows if r["run"] == run) for run in {r["run"] for r in rows}}
    at = {(r["run"], r["n_pert"], r["batch"]): r for r in rows if r["update"] == last[r["run"]]}
    base = rows[0]["n_pert"], rows[0]["batch"]
    directions = max(r["n_pert"] for r in rows), base[1]
    sequences = base[0], max(r["batch"] for r in rows)
    few_experts, most_experts = (pick(r["experts"] for r in rows) for pick in (min, max))

    def logs(experts: int, setting: tuple[int, int], column: str) -> np.ndarray:
        runs = sorted(run for run in last if at[run, *base]["experts"] == experts)
        return np.log([at[run, *setting][column] for run in runs])

    many, few = (most_experts, base), (few_experts, base)
    wider, longer = (few_experts, directions), (few_experts, sequences)
    pairs = [(many, few, "error"), (many, wider, "aggregate_seconds"), (many, longer, "aggregate_seconds")]
    pairs += [(wider, few, "error"), (longer, few, "error"), (wider, longer, "error")]
    differences = []
    for ours, theirs, column in pairs:
        both = logs(*ours, column), logs(*theirs, column)
        seeds = min(len(both[0]), len(both[1]))
        differences.append(both[0][:seeds] - both[1][:seeds])
    _check(_claim("C7"), differences, _holm(differences))


def test_equal_work_per_expert(published: Path) -> None:
    """C15: the loss of the most experts at their end, and of the fewest where each has done the same work, both on
    ensemble validation."""
    curves = _curves(published / "evaluation/validation")
    costs = pq.read_table(published / "measurements/costs.parquet").to_pylist()
    spent: dict[str, dict[int, float]] = {}
    for row in costs:
        if row["quantity"] == "arithmetic operations":
            spent.setdefault(row["run"], {})[row["update"]] = row["value"]
    rows = pq.read_table(published / "measurements/per-expert.parquet").to_pylist()
    [(mean, over_seeds)] = _claim("C15")
    ours, theirs = _sides(mean)
    values = []
    for many, few in zip(ours, theirs, strict=True):
        budget = spent[many][max(curves[many])] * rows[-1]["fewest"] / rows[-1]["experts"]
        updates = sorted(curves[few])
        loss = np.interp(budget, [spent[few][u] for u in updates], [curves[few][u] for u in updates])
        values.append(_end(curves[many]) - loss)
    _check([(mean, over_seeds)], [np.array(values)], [0.05])
