"""The command `soma status`: how much of a campaign is done, running and left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from soma.accounting.cost import update_seconds
from soma.commands.plan import runs_by_group
from soma.config.campaign import BASE, load
from soma.plan import Plan, make_plan
from soma.report.table import significant


def status(configfile: Sequence[Path]) -> None:
    """Print how many jobs are done, running and left."""
    planned = make_plan(load(BASE, *configfile))
    print("\n".join(_status_lines(planned, Path("results") / planned.config.campaign)))


def _status_lines(planned: Plan, results: Path) -> list[str]:
    lines = [f"campaign {planned.config.campaign} in {results}", ""]
    lines.append(f"{'training':20} {'done':>6} {'running':>8} {'left':>6}")
    spent, seconds, left = (defaultdict[str, float](float) for _ in range(3))  # by method
    for name, runs in runs_by_group(planned).items():
        counts = {"done": 0, "running": 0, "left": 0}
        for run in runs:
            parts = planned.folders(run)
            share = run.operations(run.updates) / len(parts)
            for folder in parts:
                cost = results / "runs" / folder / "cost.json"
                if cost.exists():
                    counts["done"] += 1
                    spent[run.settings.method] += share
                    seconds[run.settings.method] += update_seconds(cost)
                else:
                    started = any((results / "resume" / folder).glob("*.safetensors"))
                    counts["running" if started else "left"] += 1
                    left[run.settings.method] += share
        lines.append(f"{name:20} {counts['done']:6} {counts['running']:8} {counts['left']:6}")
    lines.append("(running: has a saved state and no result; its process may have stopped)")
    if spent and left:
        speed = dict.fromkeys(left, sum(spent.values()) / sum(seconds.values()))
        speed |= {method: spent[method] / seconds[method] for method in spent}
        hours = sum(work / speed[method] for method, work in left.items()) / 3600
        lines.append(f"left: {significant(hours)} device-hours of updates, at the speed of each method so far")
    lines.append("")
    kinds = {"evaluation": "*/*.parquet", "measurements": "*.parquet", "tables": "*.md", "figures": "*.svg"}
    for folder, wanted in kinds.items():
        lines.append(f"{folder:20} {len(list((results / folder).glob(wanted))):6} files")
    report = results / "report.html"
    lines.append(f"{'report':20} {'there' if report.exists() else 'not yet':>6}")
    return lines
