"""An experiment by hand: kill processes of a campaign at random until it is whole, again and again.

    python -m tests.workflow.kills 200 /tmp/kills

A campaign of short runs, two of whose jobs have two workers under torchrun, is trained once undisturbed. Then it is
trained again from the same data while, at random moments, SIGKILL meets Snakemake, its whole session, the client or the
fork of a job, torchrun, or one of its workers. After each kill Snakemake is started again if it has ended. When the
campaign is whole its weights are compared with the undisturbed ones, and the next round begins. Every update that is
computed is recorded by the copy of the project that trains, so that what was computed twice is counted, not estimated.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from soma.files.hashes import sha256_file
from tests import short_campaign
from tests.project import Project

ARM = {"operations": None, "width": 16, "milestones": [0.5, 1.0]}
COMPUTE = {"experts_per_job": 2, "ddpp": 2, "save_every": 0.5}
ARMS = {"soma-n2": {**ARM, "updates": 1500, "seeds": [0, 1]}, "spsa-n1-p8": {**ARM, "updates": 600, "seeds": [0, 1]}}
PARTS = [*(f"soma-n2-s{s}/000-001" for s in (0, 1)), *(f"spsa-n1-p8-s{s}/000-000" for s in (0, 1))]
FILES = ("weights.safetensors", "milestones.safetensors", "history.parquet")
KINDS = ("main", "session", "client", "fork", "torchrun", "worker")
SLACK = 2.0
"""Seconds beyond `save_every` by which a state may be older than a kill: an update and writing it, under load."""
_TRACE = """
def _trace(run: str, update: int) -> None:
    import os

    with open(os.environ["SOMA_TRACE"], "a") as file:
        file.write(f"{run} {os.environ.get('RANK', 0)} {os.getpid()} {update} {time.monotonic()}\\n")
"""


def checkout(folder: Path) -> Project:
    """Return a copy of the project that records every update, with text to train on."""
    project = Project(folder)
    loop = folder / "src/soma/training/loop.py"
    text = loop.read_text()
    line = "        progress.update += 1\n"
    assert text.count(line) == 1
    loop.write_text(text.replace(line, f"{line}        _trace(self.run.id, progress.update)\n") + _TRACE)
    short_campaign.checkout(project, "killed", COMPUTE, ARMS)
    project.environment["SOMA_TRACE"] = str(folder / "trace")
    return project


def run(project: Project, out: Path) -> subprocess.Popen[bytes]:
    targets = [f"results/killed/runs/{part}/weights.safetensors" for part in PARTS]
    command = project.command("snakemake", *targets, "--cores", "2", "--configfile", "config/changed.yaml", "--nolock")
    with out.open("ab") as file:
        return subprocess.Popen(
            command, cwd=project.folder, env=project.environment, stdout=file, stderr=file, start_new_session=True
        )


def processes(project: Project, session: int) -> dict[str, list[int]]:
    """Return the processes of the campaign by kind, those of sessions whose Snakemake is dead included."""
    out: dict[str, list[int]] = defaultdict(list)
    mark = f"SOMA_TRACE={project.environment['SOMA_TRACE']}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark not in (folder / "environ").read_bytes():
                continue
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            own = int(folder.name)
            if os.getsid(own) == session:
                out["session"].append(own)
            if own == session:
                out["main"].append(own)
            elif b"LOCAL_RANK=" in (folder / "environ").read_bytes():
                out["worker"].append(own)
            elif any("torch.distributed" in word for word in words):
                out["torchrun"].append(own)
            elif any("forks import serve" in word for word in words):
                logs = (os.readlink(entry) for entry in (folder / "fd").iterdir())
                if any("/logs/train-" in log for log in logs):
                    out["fork"].append(own)
            elif "soma.cli" in words and "train" in words:
                out["client"].append(own)
        except OSError:  # it has ended
            continue
    return out


def computed(trace: Path) -> Iterator[tuple[str, int, int, float]]:
    """Return (run, process, update, time) of every update that rank 0 of a part has computed."""
    for line in trace.read_text().splitlines():
        run, rank, process, update, at = line.split()
        if rank == "0":
            yield run, int(process), int(update), float(at)


def again(trace: Path) -> tuple[int, int, float]:
    """Count the updates computed, those computed before, and the longest time whose updates were computed again."""
    total = repeated = 0
    longest = 0.0
    first: dict[tuple[str, int], float] = {}
    newest: dict[str, float] = {}
    owner: dict[str, int] = {}
    for run, process, update, at in computed(trace):
        total += 1
        if (run, update) in first:
            repeated += 1
            if owner[run] != process:  # the first update of a session that takes up an older state
                longest = max(longest, newest[run] - first[run, update])
        first[run, update] = at
        newest[run], owner[run] = at, process
    return total, repeated, longest


def main(wanted: int, folder: Path, seed: int = 0) -> None:
    draw = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    whole = checkout(folder / "whole")
    assert run(whole, folder / "whole/out").wait() == 0
    digests = {
        f"{part}/{name}": sha256_file(whole.folder / "results/killed/runs" / part / name)
        for part in PARTS
        for name in FILES
    }
    needed = again(whole.folder / "trace")[0]
    kills: Counter[str] = Counter()
    rounds, total, repeated, longest = 0, 0, 0, 0.0
    while kills.total() < wanted:
        project = Project.copy_of(whole, folder / "killed")
        project.environment["SOMA_TRACE"] = str(project.folder / "trace")
        for path in ("trace", "results/killed/runs", "results/killed/resume", ".snakemake/metadata"):
            path = project.folder / path
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        (project.folder / "trace").touch()
        running = run(project, project.folder / "out")
        while True:
            until = time.monotonic() + draw.uniform(0.5, 6)
            while running.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            if running.poll() == 0:
                break
            if running.poll() is not None:  # it was killed, or gave a job up that was killed twice
                running = run(project, project.folder / "out")
                continue
            there = processes(project, running.pid)
            if not there["fork"] and not there["worker"]:
                continue  # nothing trains yet
            least = min(kills[kind] for kind in KINDS if there[kind])
            kind = draw.choice([kind for kind in KINDS if there[kind] and kills[kind] == least])
            victims = there[kind] if kind == "session" else [draw.choice(there[kind])]
            for victim in victims:
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            kills[kind] += 1
        made = {name: sha256_file(project.folder / "results/killed/runs" / name) for name in digests}
        assert made == digests, [name for name in digests if made[name] != digests[name]]
        count, twice, span = again(project.folder / "trace")
        rounds, total, repeated, longest = rounds + 1, total + count, repeated + twice, max(longest, span)
        facts = {
            "kills": dict(kills), "of them all": kills.total(), "rounds": rounds, "updates needed": needed * rounds,
            "computed": total, "computed again": repeated, "longest span computed again, s": round(longest, 2),
        }  # fmt: skip
        print(json.dumps(facts), flush=True)
        assert longest <= COMPUTE["save_every"] + SLACK, longest
        shutil.rmtree(project.folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]).resolve())
