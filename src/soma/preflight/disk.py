"""Disk, quota, memory and cores of the machine that a campaign is started on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from soma.preflight.checks import Check
from soma.preflight.jobs import Job

_SPARE = 1.2
"""Free space for each byte that the plan counts: logs, states that are being replaced, the report."""


def check_disk(folder: Path, needed: Mapping[str, float]) -> Check:
    """Compare the bytes that a campaign will write, by what they are, with the free space and the quota there."""
    want, parts = sum(needed.values()), ", ".join(f"{_size(n)} of {what}" for what, n in needed.items() if n >= 1e8)
    free, limit = float(shutil.disk_usage(folder).free), "the disk"
    left = quota_left(folder)
    if left is not None and left < free:
        free, limit = left, "your quota"
    text = f"{_size(free)} free on {limit} of {folder}; the plan writes {_size(want)}{f' ({parts})' if parts else ''}"
    if free < want:
        return Check("disk", "failed", f"{text}; free some, or work in a larger folder.")
    if free < _SPARE * want:
        return Check("disk", "warning", f"{text}, which leaves little; free some before you start.")
    return Check("disk", "ok", f"{text}.")


def quota_left(folder: Path) -> float | None:
    """Return the bytes that the user's quota leaves on a folder's file system, None if there is no quota to see."""
    command, df = shutil.which("quota"), shutil.which("df")
    if command is None or df is None:
        return None
    device = _output([df, "--output=source", str(folder)]).splitlines()[-1:]
    # Blocks are kibibytes; a file system over its quota has an asterisk behind the number, and 0 is no limit.
    for line in _output([command, "--no-wrap", "--verbose"]).splitlines():
        words = [word.rstrip("*") for word in line.split()]
        if words[:1] == device and len(words) >= 4 and all(word.isdigit() for word in words[1:4]):
            used, soft, hard = map(int, words[1:4])
            if limit := soft or hard:
                return max(0.0, 1024.0 * (limit - used))
    return None


def check_machine(jobs: Sequence[Job]) -> list[Check]:
    """Compare the memory and cores of this machine with the largest job."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory, largest = pages * page / 1e6, max(jobs, key=lambda job: job.number("mem_mb"))
    need = f"the largest job ({largest.rule}) asks for {_size(1e6 * largest.number('mem_mb'))}"
    text = f"{_size(1e6 * memory)} here; {need}"
    fits = memory >= largest.number("mem_mb")
    widest = max(jobs, key=lambda job: job.threads)
    return [
        Check("memory", "ok", f"{text}.")
        if fits
        else Check("memory", "warning", f"{text}, which is an upper bound; with less memory it may be ended."),
        Check("cores", "ok", f"{cores} here; {widest.rule} takes {min(widest.threads, cores)}."),
    ]


def _output(words: Sequence[str]) -> str:
    return subprocess.run(words, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


def _size(n: float) -> str:
    return f"{n / 1e12:.1f} TB" if n >= 1e12 else f"{n / 1e9:.3g} GB" if n >= 1e8 else f"{n / 1e6:.3g} MB"
