"""The short job of `soma preflight`: what a node sees of the folder, and whether its engine computes the right losses.

    python -m soma.preflight.node FOLDER ENGINE DEVICE

FOLDER holds a `question`; the answer is written beside it.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

from soma.accounting.machine import device_name
from soma.config.base import Record
from soma.errors import SomaError
from soma.files.atomic import write_json
from soma.forward.check import check_engine
from soma.forward.registry import create
from soma.preflight.checks import Check

QUESTION, ANSWER = "question", "answer.json"


class Facts(Record):
    """What a machine says of an engine."""

    host: str
    question: str = ""
    """Content of the question, which shows that the node reads the folder in which it was asked."""
    engine: str = ""
    device: str = ""
    error: float = 0.0
    """Largest relative error of a difference of losses."""
    problem: str | None = None
    """What is wrong, if anything."""
    seconds: float = 0.0


def facts_of(engine: str, device: str) -> Facts:
    """Check an engine on a device of this machine."""
    began, host = time.monotonic(), socket.gethostname()
    try:
        name, errors = create(engine, device).name, check_engine(engine, device)
    except SomaError as error:
        return Facts(host=host, problem=str(error))
    seconds = time.monotonic() - began
    return Facts(host=host, engine=name, device=device_name(device), error=max(errors.values()), seconds=seconds)


def engine_check(facts: Facts) -> Check:
    """Return what a machine says of an engine as a check."""
    if facts.problem:
        return Check("engine", "failed", f"on {facts.host}: {facts.problem}")
    right = f"agrees with the reference to {facts.error:.0e} of a difference of losses ({facts.seconds:.0f} s)"
    return Check("engine", "ok", f"{facts.engine} on {facts.device} of {facts.host} {right}.")


def answer(folder: Path, engine: str, device: str) -> None:
    """Write what this node says of an engine, with the question that it reads."""
    facts = facts_of(engine, device).model_copy(update={"question": (folder / QUESTION).read_text()})
    write_json(folder / ANSWER, facts.model_dump())


if __name__ == "__main__":
    answer(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
