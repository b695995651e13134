"""What a training job asks for, from the plan: how long it takes, its processes and nodes, and its warning."""

from __future__ import annotations

from soma.accounting.size import state_numbers
from soma.config.training import Compute
from soma.runs import RunSpec, part_experts

_SLOW_STORAGE = 1e8
"""Bytes per second at which a state may be written."""
_WARNING = 300
"""Seconds between Slurm's signal and the time limit, at least; Slurm may send it up to a minute early or late."""


def seconds_of(run: RunSpec, part: str, compute: Compute) -> float:
    """Return the time of a part's updates with one process."""
    return float(run.operations(run.updates)) * len(part_experts(part)) / run.experts / compute.rate


def workers_of(run: RunSpec, part: str, compute: Compute) -> int:
    """Return the number of processes that divide the directions of a part (`compute.ddpp`)."""
    s = run.settings
    if s.method == "bptt":  # it has no directions
        return 1
    most = min(compute.ddpp, s.n_pert if s.method == "spsa" else -(-s.eggroll.population // 2 // s.eggroll.pair_chunk))
    if compute.days is None:
        return most
    workers = 1
    while workers < most and seconds_of(run, part, compute) / workers > compute.days * 86400:
        workers = min(2 * workers, most)
    return workers


def nodes_of(run: RunSpec, part: str, compute: Compute) -> int:
    """Return the number of nodes for a part's processes, all with equally many."""
    workers = workers_of(run, part, compute)
    nodes = -(-workers // compute.node_workers)
    while workers % nodes:
        nodes += 1
    return nodes


def warning_of(run: RunSpec, part: str, compute: Compute) -> int:
    """Return the seconds before its time limit at which a job is told to stop: for an update and a save, both slow."""
    update = seconds_of(run, part, compute) / run.updates / workers_of(run, part, compute)
    save = 4 * state_numbers(run) * len(part_experts(part)) / run.experts / _SLOW_STORAGE
    return round(_WARNING + 2 * update + save)
