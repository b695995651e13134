"""A training job of the toy campaign that tests stop, and helpers that find its process and wait for its effects."""

import json
import os
import time
from pathlib import Path

from tests.project import Project


def train_command(project: Project, output: Path, resume: Path, save_every: float = 0.01) -> list[str]:
    """Return the command that trains soma-n2-s0 as the workflow does, but saves its state continually."""
    results = project.folder / "results/toy"
    compute = output.parent / "compute.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    compute.write_text(json.dumps({"save_every": save_every}))
    return project.command(
        "soma.cli", "train", "--settings", str(results / "settings/run-soma-n2-s0.json"), "--part", "000-001",
        "--train", str(results / "corpus/train"), "--shards", str(results / "shards/clusters-n2"),
        "--runs", str(results / "runs"), "--start", "seed-d16-s0/000-000", "--resume", str(resume),
        "--output", str(output),
        "--compute", str(compute), "--threads", "1",
    )  # fmt: skip


def wait_for(found, seconds: float = 120.0):
    """Return the result of `found()` as soon as it is not empty."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


def processes_that_open(file: Path) -> list[int]:
    """Return the ids of the processes that have a file open, such as the log of their job."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(entry) == str(file) for entry in (folder / "fd").iterdir()):
                found.append(int(folder.name))
        except OSError:  # it has ended, or closed the file
            continue
    return found
