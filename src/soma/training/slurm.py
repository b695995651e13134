"""Slurm, as far as a training job knows of it: a job that has saved its state asks to be started again."""

from __future__ import annotations

import os
import shutil
import subprocess


def requeue() -> bool:
    """Ask Slurm to queue this process's job again, unless it is being cancelled; return whether it will.

    So the number of time limits that a run may need has no limit, and Snakemake need not submit again what failed.
    """
    job, command = os.environ.get("SLURM_JOB_ID"), shutil.which("scontrol")
    if job is None or command is None:
        return False

    def scontrol(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, *words, job], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )

    # Slurm would also requeue a job that it is cancelling, which gets the same signal.
    running = "JobState=RUNNING" in scontrol("show", "job").stdout
    return running and scontrol("requeue").returncode == 0
