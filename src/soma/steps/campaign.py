"""Whole campaigns: expected cost, progress, and verification of their files."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pathspec import GitIgnoreSpec

from soma.config import load
from soma.errors import SomaError
from soma.manifest import describe_files, read_json, sha256_file, write_json
from soma.models.count import operations_per_token
from soma.plan import Plan, make_plan
from soma.report.table import significant
from soma.runs import RunSpec, operations_of

BASE = Path("config/config.yaml")
_LEFT_OUT = Path(".dvcignore")
RATES = {
    "the paper's RTX 5090, 6.9e11 operations in 0.154 s at width 32": 4.5e12,
    "one core of the pilot's CPU, 75 GF/s": 7.5e10,
}
ADOPTIONS = "adoptions.json"
"""File in which a campaign keeps the evidence for its adoptions (`steps.adopt`), newest last."""
_UNCHECKED = ("logs", "benchmarks", "resume", "settings", "report.html", "manifest.json", "provenance.json", ADOPTIONS)
"""Files left out of a manifest, because another run of the same campaign may write them differently."""


def plan(configfile: Sequence[Path], rate: float | None) -> None:
    """Print the expected cost of a campaign."""
    print("\n".join(_plan_lines(make_plan(load(BASE, *configfile)), rate)))


def status(configfile: Sequence[Path]) -> None:
    """Print how many jobs are done, running and left."""
    found = make_plan(load(BASE, *configfile))
    print("\n".join(_status_lines(found, Path("results") / found.config.campaign)))


def verify(results: Path) -> None:
    """Print every file that is wrong, missing or extra.

    Files that .dvcignore leaves out are checked if present, and may be missing.

    Raises:
        SomaError: if there is such a file.
    """
    known = read_json(results / "manifest.json")["files"]
    found = _checked_files(results)
    wrong = [name for name in sorted(known.keys() & found) if _differs(results / name, known[name])]
    absent = known.keys() - found
    missed = sorted(name for name in absent if not stays(results / name))
    problems = [("wrong", wrong), ("missing", missed), ("extra", sorted(found - known.keys()))]
    for problem, names in problems:
        for name in names:
            print(f"{problem:8} {results / name}")
    count = sum(len(names) for _, names in problems)
    if count:
        raise SomaError(
            f"{results}: {count} of {len(known)} files are not as the manifest says; delete what is wrong or extra and "
            "run snakemake again."
        )
    elsewhere = f" ({len(absent)} more stay where they were made)" if absent else ""
    print(f"{results}: {len(known.keys() & found)} files, all as the manifest says{elsewhere}")


def stays(path: Path) -> bool:
    """Return True if .dvcignore keeps a file out of DVC."""
    return _left_out().match_file(os.path.relpath(path))


@cache
def _left_out() -> GitIgnoreSpec:
    return GitIgnoreSpec.from_lines(_LEFT_OUT.read_text().splitlines() if _LEFT_OUT.exists() else [])


def write_manifest(results: Path) -> None:
    """Record size and hash of every file of a finished campaign."""
    write_json(results / "manifest.json", {"files": describe_files(results, sorted(_checked_files(results)))})


def refresh_manifest(results: Path, changed: Sequence[str]) -> None:
    """Record size and hash of rewritten files, if the campaign has a manifest."""
    path = results / "manifest.json"
    if path.exists():
        known = read_json(path)["files"]
        write_json(path, {"files": known | describe_files(results, [name for name in changed if name in known])})


def _checked_files(results: Path) -> set[str]:
    paths = (p.relative_to(results) for p in results.rglob("*") if p.is_file())
    return {p.as_posix() for p in paths if not _unchecked(p)}


def _unchecked(path: Path) -> bool:
    """Return True for files left out of the manifest, including downloads and hidden names.

    Downloads have their own manifest and are not versioned. Hidden names are markers of Snakemake and DVC, and files
    that a killed job left incomplete.
    """
    download = path.parts[0] == "corpus" and path.parts[1].startswith("source-")
    return path.parts[0] in _UNCHECKED or download or any(part.startswith(".") for part in path.parts)


def _differs(path: Path, known: dict[str, object]) -> bool:
    return path.stat().st_size != known["bytes"] or sha256_file(path) != known["sha256"]


def _runs_by_group(found: Plan) -> dict[str, list[RunSpec]]:
    """Group the runs by the first product that needs them."""
    groups: dict[str, list[RunSpec]] = {"seed runs": [run for run in found.runs.values() if run.kind == "seed"]}
    taken = {run.id for run in groups["seed runs"]}
    fixed = list(found.config.products.fixed_size.arms)
    products = {"equal total size": fixed} | {
        group: list(arms) for group, arms in found.groups.items() if group not in fixed
    }
    for name, arms in products.items():
        own = [run for arm in arms for run in found.arm_runs[arm] if run.id not in taken]
        groups[name] = list({run.id: run for run in own}.values())
        taken |= {run.id for run in own}
    groups["continued"] = [run for run in found.runs.values() if run.id not in taken]
    return {name: runs for name, runs in groups.items() if runs}


def _plan_lines(found: Plan, rate: float | None) -> list[str]:
    runs = list(found.runs.values())
    total = sum(float(run.operations(run.updates)) for run in runs)
    jobs = sum(len(found.parts(run)) for run in runs)
    lines = [f"campaign {found.config.campaign}: {len(runs)} runs in {jobs} training jobs", ""]
    lines.append(f"{'product':20} {'runs':>5} {'jobs':>6} {'operations':>12}")
    for name, group in _runs_by_group(found).items():
        spent = sum(float(run.operations(run.updates)) for run in group)
        lines.append(f"{name:20} {len(group):5} {sum(len(found.parts(r)) for r in group):6} {significant(spent):>12}")
    lines += [f"{'total':20} {len(runs):5} {jobs:6} {significant(total):>12}", ""]
    lines.append("device-hours of the updates (validation, evaluation, preprocessing and measurements excluded)")
    for name, per_second in (RATES | ({"--rate": rate} if rate else {})).items():
        lines.append(f"  {significant(total / per_second / 3600):>10} h  at {per_second:.3g}/s: {name}")
    final = sum(4 * run.parameters * (3 if run.keep_memory else 1) for run in runs)
    legs = sum(4 * _state_size(run) for run in runs if run.leg is not None)
    milestones = sum(4 * run.parameters * (2 * len(run.milestones) - 1) for run in runs)
    lines += [
        "",
        f"disk: {significant(final / 1e9)} GB of final weights, {significant(milestones / 1e9)} GB of earlier "
        f"milestones and averages, {significant(legs / 1e9)} GB of last legs",
    ]
    held = getattr(found.config.data.train, "bytes", None)
    if held:
        vectors = held // found.config.data.window * found.config.routing.svd * 4
        lines[-1] += f", {significant(held / 1e9)} GB of text, {significant(vectors / 1e9)} GB of router features"
    sizes = f"{'arm':36} {'N':>4} {'width':>6} {'parameters':>11} {'expert':>11} {'served':>11}"
    lines += ["", f"{sizes} {'updates':>10} {'operations':>11} seeds"]
    for arm, of_arm in found.arm_runs.items():
        run = of_arm[0]
        expert, served = _per_byte(run), _served(found, arm)
        sizes = f"{arm:36} {run.experts:4} {run.settings.width:6} {run.parameters:11,} {expert:11,}"
        cost = significant(float(run.operations(run.updates)))
        lines.append(f"{sizes} {served:11,} {run.updates:10,} {cost:>11} {len(of_arm):5}")
    lines.append("(expert, served: forward operations for a byte, of one expert and of all k that answer)")
    serving = {arm: _served(found, arm) for arm in found.config.products.inference.arms}
    most, least = max(serving, key=serving.__getitem__), min(serving, key=serving.__getitem__)
    ratio = significant(serving[most] / serving[least])
    return [*lines, f"of Table 12's arms, {most} takes {ratio} times the operations of {least} to serve a byte"]


def _state_size(run: RunSpec) -> int:
    """Return the size of a resume state in numbers: weights with two moments, or with the states of a population."""
    s = run.settings
    if s.method != "eggroll":
        return 3 * run.parameters
    members = {"carry": s.eggroll.population, "pair_shared": s.eggroll.population // 2, "reset": 0}[s.eggroll.state]
    return run.parameters + members * s.depth * s.width


def _served(found: Plan, arm: str) -> int:
    """Return the forward operations per byte of all active experts."""
    return _per_byte(found.arm_runs[arm][0]) * found.arms[arm].active


def _per_byte(run: RunSpec) -> int:
    """Return the forward operations per byte of one expert."""
    s = run.settings
    if s.method == "eggroll":
        return operations_of(s, 1) // (s.eggroll.population * s.eggroll.tokens)
    return operations_per_token(run.model)


def _status_lines(found: Plan, results: Path) -> list[str]:
    lines = [f"campaign {found.config.campaign} in {results}", ""]
    lines.append(f"{'training':20} {'done':>6} {'running':>8} {'left':>6}")
    spent, seconds, left = (defaultdict[str, float](float) for _ in range(3))  # by method
    for name, runs in _runs_by_group(found).items():
        counts = {"done": 0, "running": 0, "left": 0}
        for run in runs:
            parts = found.folders(run)
            share = run.operations(run.updates) / len(parts)
            for folder in parts:
                cost = results / "runs" / folder / "cost.json"
                if cost.exists():
                    counts["done"] += 1
                    spent[run.settings.method] += share
                    seconds[run.settings.method] += read_json(cost)["ledger"]["seconds"].get("update", 0.0)
                else:
                    started = (results / "resume" / folder / "state.safetensors").exists()
                    counts["running" if started else "left"] += 1
                    left[run.settings.method] += share
        lines.append(f"{name:20} {counts['done']:6} {counts['running']:8} {counts['left']:6}")
    lines.append("(running: saved and not finished, whether or not a process works on it now)")
    if spent and left:
        speed = dict.fromkeys(left, sum(spent.values()) / sum(seconds.values()))
        speed |= {method: spent[method] / seconds[method] for method in spent}
        hours = sum(work / speed[method] for method, work in left.items()) / 3600
        lines.append(f"left: {significant(hours)} device-hours of updates, every method at its speed so far")
    lines.append("")
    kinds = {"evaluation": "*/*.parquet", "measurements": "*.parquet", "tables": "*.md", "figures": "*.svg"}
    for folder, wanted in kinds.items():
        lines.append(f"{folder:20} {len(list((results / folder).glob(wanted))):6} files")
    report = results / "report.html"
    lines.append(f"{'report':20} {'there' if report.exists() else 'not yet':>6}")
    return lines
