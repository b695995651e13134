"""The command `soma plan`: the expected cost of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from soma.accounting.schedule import nodes_of, seconds_of, workers_of
from soma.accounting.size import joining_bytes, stored_bytes
from soma.config.campaign import BASE, load
from soma.errors import SomaError
from soma.models.count import operations_per_token
from soma.plan import Plan, make_plan
from soma.report.paper import PaperValues
from soma.report.table import significant
from soma.runs import RunSpec, operations_of, own_method, part_experts

_PILOT = {"one core of the pilot's CPU, 75 GF/s": 7.5e10}
"""Operations per second in this project's own first measurements."""

_LIMIT = 1
"""Days after which a cluster ends a training job, which then continues (the rules' `runtime`)."""


def plan(configfile: Sequence[Path], rate: float | None) -> None:
    """Print the expected cost of a campaign."""
    if rate is not None and not 1 <= rate <= 1e30:
        raise SomaError(f"--rate is {rate}; give the operations per second of your device, such as 1e12.")
    print("\n".join(_plan_lines(make_plan(load(BASE, *configfile)), rate)))


def _plan_lines(planned: Plan, rate: float | None) -> list[str]:
    runs = list(planned.runs.values())
    total = sum(float(run.operations(run.updates)) for run in runs)
    jobs = sum(len(planned.parts(run)) for run in runs)
    lines = [f"campaign {planned.config.campaign}: {len(runs)} runs in {jobs} training jobs", ""]
    lines.append(f"{'product':20} {'runs':>5} {'jobs':>6} {'operations':>12}")
    for name, group in runs_by_group(planned).items():
        spent = sum(float(run.operations(run.updates)) for run in group)
        lines.append(f"{name:20} {len(group):5} {sum(len(planned.parts(r)) for r in group):6} {significant(spent):>12}")
    lines += [f"{'total':20} {len(runs):5} {jobs:6} {significant(total):>12}", ""]
    lines.append("device-hours of the updates (validation, evaluation, preprocessing and measurements excluded)")
    for name, per_second in (rates() | ({"--rate": rate} if rate else {})).items():
        lines.append(f"  {significant(total / per_second / 3600):>10} h  at {per_second:.3g}/s: {name}")
    lines += ["", *_jobs(planned, rate)]
    stored = [f"{significant(n / 1e9)} GB of {what}" for what, n in stored_bytes(planned).items()]
    lines += ["", f"disk: {', '.join(stored)}"]
    if joined := joining_bytes(planned):
        lines.append(
            f"  text while its encoded parts are joined: {significant(joined / 1e9)} GB, before shards are written"
        )
    sizes = f"{'arm':36} {'N':>4} {'width':>6} {'parameters':>11} {'expert':>11} {'served':>11}"
    lines += ["", f"{sizes} {'updates':>10} {'operations':>11} seeds"]
    for arm, of_arm in planned.arm_runs.items():
        run = of_arm[0]
        expert, served = _per_byte(run), _served(planned, arm)
        sizes = f"{arm:36} {run.experts:4} {run.settings.width:6} {run.parameters:11,} {expert:11,}"
        cost = significant(float(run.operations(run.updates)))
        lines.append(f"{sizes} {served:11,} {run.updates:10,} {cost:>11} {len(of_arm):5}")
    lines.append("(expert, served: forward operations per byte, of one expert and of the k experts averaged)")
    inference = planned.config.products.inference
    if not inference:
        return lines
    serving = {arm: _served(planned, arm) for arm in inference.arms}
    most, least = max(serving, key=serving.__getitem__), min(serving, key=serving.__getitem__)
    ratio = significant(serving[most] / serving[least])
    return [*lines, f"to serve a byte, {most} needs {ratio} times the operations of {least} (arms of Table 12)"]


def _jobs(planned: Plan, rate: float | None) -> list[str]:
    """Describe the longest training job, how often jobs start again at their time limit, and what they read then."""
    compute = planned.config.compute.model_copy(update={"rate": rate} if rate else {})
    text = getattr(planned.config.data.train, "bytes", None)
    days, longest, starts, read, shared, most, nodes = 0.0, "", 0, 0.0, 0, 1, 1
    for run in planned.runs.values():
        for part in planned.parts(run):
            own, workers = len(part_experts(part)), workers_of(run, part, compute)
            spent = seconds_of(run, part, compute) / workers / 86400
            times = 1 + int(spent / _LIMIT)
            starts += times
            kind, _, shards = run.shards.partition("-n")
            read += times * (text or 0) * (1 if kind == "iid" else own / int(shards))
            shared += workers > 1
            most, nodes = max(most, workers), max(nodes, nodes_of(run, part, compute))
            if spent > days:
                days, longest = spent, f"{run.id} {part}, {_time(spent)} with {workers} process(es)"
    lines = [
        f"longest training job: {longest} of {compute.rate:.3g} operations/s, "
        f"{1 + int(days / _LIMIT)} start(s) with a time limit of 24 h",
        f"jobs with several processes (compute.ddpp, compute.days): {shared}, with up to {most} on {nodes} node(s)",
    ]
    reads = f", which read {significant(read / 1e9)} GB of text" if text else ""
    return [*lines, f"starts of training jobs: {starts:,}{reads}"]


def _time(days: float) -> str:
    return f"{significant(days)} days" if days >= 1 else f"{significant(24 * days)} h"


def runs_by_group(planned: Plan) -> dict[str, list[RunSpec]]:
    """Group the runs by the first product that needs them."""
    groups: dict[str, list[RunSpec]] = {"seed runs": [run for run in planned.runs.values() if run.kind == "seed"]}
    taken = {run.id for run in groups["seed runs"]}
    fixed = list(planned.config.products.fixed_size.arms)
    products = {"equal total size": fixed} | {
        group: list(arms) for group, arms in planned.groups.items() if group not in fixed
    }
    for name, arms in products.items():
        own = [run for arm in arms for run in planned.arm_runs[arm] if run.id not in taken]
        groups[name] = list({run.id: run for run in own}.values())
        taken |= {run.id for run in own}
    groups["continued"] = [run for run in planned.runs.values() if run.id not in taken]
    return {name: runs for name, runs in groups.items() if runs}


def rates() -> dict[str, float]:
    """Return named numbers of operations per second."""
    paper = PaperValues(BASE.with_name("paper_values.yaml")).tables
    update, gpu = paper["update"], paper["source"]["gpu"]
    seconds = fmean(update["seconds"])
    spent = f"{significant(update['operations'])} operations in {seconds:.3f} s at width {update['width']}"
    return {f"the paper's {gpu}, {spent}": update["operations"] / seconds} | _PILOT


def _served(planned: Plan, arm: str) -> int:
    """Return the forward operations per byte of all active experts."""
    return _per_byte(planned.arm_runs[arm][0]) * planned.arms[arm].active


def _per_byte(run: RunSpec) -> int:
    """Return the forward operations per byte of one expert."""
    s = run.settings
    if s.method == "eggroll":
        return operations_of(s, 1) // (s.eggroll.population * s.eggroll.tokens)
    if run.family == "module":
        counted: int = own_method(s.method).forward_operations(s)
        return counted
    return operations_per_token(run.model)
