"""The command `soma preflight`: does the place where a campaign will run have what its jobs ask for?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from soma.accounting.schedule import seconds_of
from soma.accounting.size import stored_bytes
from soma.commands.plan import rates
from soma.config.campaign import BASE, load, read_yaml
from soma.errors import SomaError
from soma.plan import Plan, make_plan
from soma.preflight import slurm
from soma.preflight.checks import Check
from soma.preflight.disk import check_disk, check_machine
from soma.preflight.jobs import Job, planned_jobs
from soma.preflight.node import engine_check, facts_of
from soma.report.table import significant
from soma.runs import RunSpec


def preflight(configfile: Sequence[Path], workflow_profile: Path | None, rate: float | None, wait: float) -> None:
    """Print one line for each check.

    Raises:
        SomaError: if a check fails, or Snakemake cannot plan the campaign.
    """
    if rate is not None and not 1 <= rate <= 1e30:
        raise SomaError(f"--rate is {rate}; give the operations per second of your device, such as 1e12.")
    if not 0 < wait <= 1e6:
        raise SomaError(f"--wait is {wait}; give the seconds to wait for one short job, such as 600.")
    planned = make_plan(load(BASE, *configfile))
    profile = _profile(workflow_profile)
    executor = profile.get("executor", "local")
    if executor not in ("local", "slurm"):
        raise SomaError(f"{workflow_profile}: the executor is {executor!a}; preflight knows slurm and this machine.")
    if not Path("Snakefile").exists():
        raise SomaError("there is no Snakefile here; run this in the folder of the project.")
    jobs = planned_jobs(configfile, workflow_profile)
    results = Path("results") / planned.config.campaign
    checks = [Check("plan", "ok", f"campaign {planned.config.campaign}: {len(jobs):,} jobs are left to run.")]
    print(checks[0].line(), flush=True)
    if jobs:
        for check in _checks(planned, jobs, profile, results, rate, wait):
            checks.append(check)
            print(check.line(), flush=True)
    failed = [check.name for check in checks if check.status == "failed"]
    if failed:
        raise SomaError(f"not ready: {', '.join(failed)} of {len(checks)} checks failed; see above.")


def _checks(
    planned: Plan, jobs: Sequence[Job], profile: Mapping[str, Any], results: Path, rate: float | None, wait: float
) -> Iterator[Check]:
    """Yield the checks of a cluster, or of this machine, in the order of a growing price."""
    compute, at_once = planned.config.compute, profile.get("jobs")
    at_once = at_once if isinstance(at_once, int) else os.cpu_count() or 1
    devices = at_once
    place = next(folder for folder in (results, *results.parents) if folder.exists())
    disk = check_disk(place, stored_bytes(planned))
    if profile.get("executor") == "slurm":
        try:
            known, requests = slurm.partitions(), slurm.requests_of(jobs)
        except SomaError as error:
            yield Check("slurm", "failed", str(error))
            yield disk
            return
        checks = [*slurm.check_requests(requests, known, at_once), disk]
        yield from checks
        if all(check.status != "failed" for check in checks[:-1]):
            training = [request for request in requests if request.rule.startswith("train")] or requests
            yield from slurm.check_node(min(training, key=lambda r: r.gpus), compute, results, wait)
        else:
            yield Check(
                "short job", "warning", "not sent, since Slurm would refuse others; call this again afterwards."
            )
        devices = min(at_once, slurm.gpus_in_reach(requests, known) or at_once)
    else:
        yield from check_machine(jobs)
        yield disk
        yield engine_check(facts_of(compute.engine, compute.device))
    yield _cost(planned, jobs, devices, rate)


def _cost(planned: Plan, jobs: Sequence[Job], devices: int, rate: float | None) -> Check:
    """Return the device-hours of the training that is left, and how long it takes at least."""
    named = list(rates().items())
    name, per_second = named[0 if planned.config.compute.device.startswith("cuda") else -1]
    if rate is not None:
        name, per_second = "--rate", rate
    compute = planned.config.compute.model_copy(update={"rate": per_second})
    hours: dict[str, float] = {}  # of a run's longest job
    total = 0.0
    for job in jobs:
        if job.rule.startswith("train"):
            run = planned.runs[job.wildcards["run"]]
            spent = seconds_of(run, job.wildcards["part"], compute) / 3600
            total += spent
            hours[run.id] = max(hours.get(run.id, 0.0), spent / max(1, job.number("workers")))

    def chain(run: RunSpec) -> float:
        """Return the hours from the start of the first run that a run needs to the end of its own."""
        before = [planned.runs[other] for other in (run.start, run.head_from) if other]
        return hours.get(run.id, 0.0) + max((chain(other) for other in before), default=0.0)

    longest = max((chain(planned.runs[run]) for run in hours), default=0.0)
    whole, used = _time(max(longest, total / devices)), f"{significant(total)} device-hours of updates"
    return Check(
        "cost",
        "ok",
        f"{used} at {per_second:.3g}/s ({name}): {whole} or more with {devices} device(s) at once; "
        f"jobs that wait for each other take {_time(longest)}.",
    )


def _time(hours: float) -> str:
    return f"{significant(hours / 24)} days" if hours > 48 else f"{significant(hours)} h"


def _profile(folder: Path | None) -> dict[str, Any]:
    """Return the content of a profile; without one, jobs run on this machine."""
    if folder is None:
        return {}
    names = [folder / name for name in ("profile.yaml", "config.yaml", "profile.v9+.yaml", "config.v9+.yaml")]
    path = next((path for path in names if path.exists()), None)
    if path is None:
        raise SomaError(f"{folder} holds no profile.yaml; name the folder of a profile, such as profiles/slurm.")
    return read_yaml(path)
