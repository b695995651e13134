"""What a training job holds: numbers of its state, bytes of its text, and the memory that it needs."""

from __future__ import annotations

from soma.plan import Plan
from soma.runs import RunSpec, part_experts

_IDLE, _IDLE_ON_GPU = 1500, 4000
"""Megabytes of a process that trains nothing: Python, torch and, on a GPU, its driver."""
_TEXT = 512
"""Megabytes of text that a job holds for each expert at most; a longer one is mapped (soma.data.shards)."""
_COMPRESSED = 0.5
"""Bytes on disk of each downloaded byte of text, at most, as Parquet with zstd."""


def state_numbers(run: RunSpec) -> int:
    """Return the size of a resume state in numbers: weights with two moments, or with the states of a population."""
    s = run.settings
    if s.method != "eggroll":
        return 3 * run.parameters
    members = {"carry": s.eggroll.population, "pair_shared": s.eggroll.population // 2, "reset": 0}[s.eggroll.state]
    return run.parameters + members * s.depth * s.width


def training_megabytes(run: RunSpec, part: str, device: str) -> int:
    """Return the memory that one process of a training job needs, in megabytes.

    It is an upper bound: the state, its copies for the next save and the last leg, every checkpoint that is kept until
    the end, and text.
    """
    own = len(part_experts(part))
    kept = run.parameters * (2 * len(run.milestones) + 1)
    numbers = 3 * state_numbers(run) + kept
    if run.family == "module":  # directions, and copies on both sides of the weights
        numbers += 3 * run.settings.n_pert * run.parameters
    idle = _IDLE if device == "cpu" else _IDLE_ON_GPU
    return idle + own * _TEXT + 4 * numbers * own // run.experts // 1_000_000


def joining_bytes(plan: Plan) -> float:
    """Return the bytes of text while its encoded parts are joined, 0 if there is one part or its size is unknown.

    The parts are removed then, before shards are written, which take at least as much: so they add nothing to what a
    campaign needs in the end (`stored_bytes`).
    """
    held = getattr(plan.config.data.train, "bytes", None) or 0
    return 2.0 * held if plan.config.compute.parts > 1 else 0.0


def stored_bytes(plan: Plan) -> dict[str, float]:
    """Return the bytes that a campaign writes, by what they are; those of text only if its size is configured."""
    runs = list(plan.runs.values())
    out: dict[str, float] = {
        "final weights": sum(4 * run.parameters * (3 if run.keep_memory else 1) for run in runs),
        "earlier milestones and averages": sum(4 * run.parameters * (2 * len(run.milestones) - 1) for run in runs),
        "last legs": sum(4 * state_numbers(run) for run in runs if run.leg is not None),
    }
    if held := getattr(plan.config.data.train, "bytes", None):
        out["downloaded text, compressed"] = _COMPRESSED * held
        out["text"] = held
        out["text of shards"] = held * len({run.shards for run in runs})
        out["router features"] = held // plan.config.data.window * plan.config.routing.svd * 4
    return out
