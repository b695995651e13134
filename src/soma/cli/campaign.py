"""Subcommands for a whole campaign: `soma plan`, `preflight`, `status`, `verify`, `regenerate`, `replay` and others."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from soma.cli.parsers import add_command

_CORES = os.cpu_count() or 1

_PLAN = """\
Print what a campaign will cost before anything runs: runs, jobs, arithmetic operations, device-hours by a named
convention, and disk space. Only the configuration is read. Overlays are merged over config/config.yaml, as with
Snakemake's --configfile."""

_PREFLIGHT = """\
Check before a campaign is started that the place has what its jobs ask for, one line for each check. With a profile
for Slurm: partitions, accounts, time limits and nodes, the folder, and the engine, by one short job; without: this
machine. Disk and quota are checked, and the cost is told. The exit status is 1 if a check fails."""

_STATUS = """\
Print how much of a campaign is done, running and left, and how long the rest will take at the speed so far. Only files
are looked at; `snakemake -n` says which of them are out of date."""

_VERIFY = """\
Compare every file of a campaign with manifest.json, which the workflow writes at its end. Wrong, missing and extra
files are listed, and the exit status is 1 if there are any."""

_REGENERATE = """\
Make every table, figure and page of a campaign again from its rows, and the rows themselves from evaluations and
measurements, by the commands that made them (about a minute). Each is compared with the published file: bytes, or
numbers to some digits where sums depend on the processor. Nothing below results/ is written. The exit status is 1 if
something did not come out as published; what needs files that are not here is counted."""

_REPLAY = """\
Run parts of recorded training and evaluation again from the files that a campaign ships, and compare the results
(docs/replay.md): the first updates of a run with its history, the last ones with its published weights, and the losses
of some documents with its evaluation. By default, one seed of every arm is replayed as far as that is cheap. Nothing
below RESULTS is written. The exit status is 1 if something differs, if nothing could be compared, or if files of a run
that you named are missing."""

_ADOPT = """\
Keep recorded results after a refactoring, so that nothing is trained again. The changed code is run again where that is
needed to compare its results with the recorded ones: for training and evaluation the parts that `soma replay` compares,
for every other step all of it. If everything is identical, the records get the new digests of the code. Any
difference is named, and then nothing is adopted."""

_SNAPSHOT = """\
Record the campaign of dvc.yaml in dvc.lock, so that `dvc push` can share it. This is refused while
`snakemake --dry-run` still has something to do, because DVC keeps outdated files as readily as current ones. --partial
records the stages that have finished so far, for a campaign that is trained in several sessions."""


def add_commands(commands: Any) -> None:
    """Add these subcommands to the parser."""
    c = add_command(commands, "plan", "Print what a campaign will cost", _PLAN)
    _overlays(c)
    c.add_argument("--rate", type=float, help="operations per second of your device, for one more line of device-hours")
    c = add_command(commands, "preflight", "Check that a cluster or machine is ready for a campaign", _PREFLIGHT)
    _overlays(c)
    c.add_argument("--workflow-profile", type=Path, help="profile of a cluster, such as profiles/slurm")
    c.add_argument("--rate", type=float, help="operations per second of your device, for the cost")
    c.add_argument("--wait", type=float, default=600.0, help="seconds to wait for the short job (default: 600)")
    c = add_command(commands, "status", "Print what is done, running and left", _STATUS)
    _overlays(c)
    c = add_command(commands, "verify", "Check every file of a campaign", _VERIFY)
    _results(c)
    c = add_command(commands, "regenerate", "Make all tables and figures again, and compare", _REGENERATE)
    _overlays(c)
    c.add_argument("--workers", type=int, default=_CORES, help="commands at the same time (default: %(default)s)")
    c = add_command(commands, "replay", "Run parts of recorded runs again, and compare", _REPLAY)
    _results(c)
    c.add_argument("runs", nargs="*", metavar="run", help="replay only these runs, and all of each: soma-n2-s0")
    c.add_argument("--all", action="store_true", dest="everything", help="replay all of every run")
    c.add_argument("--json", action="store_true", dest="as_json", help="print one JSON document instead of lines")
    _threads(c)
    c = add_command(commands, "adopt", "Keep results after a refactoring, if it reproduces them", _ADOPT)
    _overlays(c)
    c.add_argument(
        "--reason", help="also adopt what agrees only to some digits or cannot be compared here, for this reason"
    )
    c.add_argument(
        "--leave", nargs="+", default=[], metavar="CODE", help="leave these to Snakemake, such as measure-precision/cpu"
    )
    _threads(c)
    c = add_command(commands, "snapshot", "Record a finished campaign with DVC", _SNAPSHOT)
    c.add_argument("--partial", action="store_true", help="record the stages that have finished so far")


def _overlays(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--configfile", type=Path, nargs="+", default=[], help="overlays (default: none, which is campaign small)"
    )


def _results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", type=Path, help="folder of the campaign, such as results/small")


def _threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default: %(default)s)")
