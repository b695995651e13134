"""A copy of the project in its own folder, with the code that it runs, so that tests can edit both."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests import zygote

ROOT = Path(__file__).parent.parent


def planned_jobs(said: str) -> dict[str, int]:
    """Return the jobs that a dry run listed, by rule, without `all`; outside this project Snakemake's own table."""
    table = re.search(r"^(?:rule +jobs  why|job +count\n-+ +-+)\n(.*?)\ntotal", said, re.S | re.M)
    if table is None:
        assert "Nothing to be done" in said
        return {}
    counts = {line.split()[0]: int(line.split()[1]) for line in table.group(1).splitlines()}
    counts.pop("all", None)
    return counts


def whole(done: subprocess.CompletedProcess[str], check: bool) -> subprocess.CompletedProcess[str]:
    """Return a process that has ended; fail if it was to succeed and did not."""
    if check and done.returncode:
        words = " ".join(map(str, done.args))
        raise AssertionError(f"{words} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done


class Project:
    """A temporary checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("workflow", "config", "profiles", "src"):
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        shutil.copy(ROOT / "Snakefile", folder)
        (folder / "docs").mkdir()
        shutil.copy(ROOT / "docs/results.template.md", folder / "docs")  # the story of `small`
        self.environment = os.environ | {"PYTHONPATH": str(folder / "src")}

    @classmethod
    def copy_of(cls, project: Project, folder: Path) -> Project:
        """Return a copy of a checkout with all that it has made."""
        shutil.copytree(project.folder, folder, symlinks=True)
        copy = cls.__new__(cls)
        copy.folder, copy.environment = folder, os.environ | {"PYTHONPATH": str(folder / "src")}
        return copy

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", *words]

    def run(self, *words: str, check: bool = True, alone: bool = False) -> subprocess.CompletedProcess[str]:
        """Run `python -m WORDS` in the folder, as a fork (tests.zygote) or, alone, as a process that imports."""
        if alone:
            options = {"cwd": self.folder, "env": self.environment, "check": False}
            done = subprocess.run(self.command(*words), capture_output=True, text=True, **options)
        else:
            done = zygote.run(list(words), self.folder, self.environment)
        return whole(done, check)

    def snakemake(self, *words: str, config: str = "config/toy.yaml", cores: int = 2, **how: bool):
        files = ["--configfile", config] if config else []  # last, since it takes all following words
        return self.run("snakemake", *words, "--cores", str(cores), *files, **how)

    def planned(self, config: str = "config/toy.yaml") -> dict[str, int]:
        """Return the jobs of a dry run by rule, without `all` and other rules that do no work."""
        out = self.snakemake("-n", config=config)
        return planned_jobs(out.stdout + out.stderr)

    def overlay(self, change: dict, base: str = "config/toy.yaml") -> str:
        """Write a copy of the toy overlay with a change merged in, and return its path."""
        from soma.config.campaign import merge, read_yaml

        path = self.folder / "config/changed.yaml"
        path.write_text(yaml.safe_dump(merge(read_yaml(self.folder / base), change)))
        return "config/changed.yaml"
