"""Subcommands for a whole campaign: `soma plan`, `status`, `verify`, `replay`, `adopt` and `snapshot`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_PLAN = """\
What a campaign will cost, before anyone spends anything: runs, jobs, arithmetic operations, device-hours by named
convention, and disk. Reads the configuration only. Overlays are merged over config/config.yaml, as Snakemake's
--configfile does."""

_STATUS = """\
What of a campaign is done, running and left, with the time that is left at the speed of the runs that are done. Looks
at files only; `snakemake -n` says which of them are out of date."""

_VERIFY = """\
Check every file of a campaign against the manifest that the workflow wrote when it ended, manifest.json in its folder.
Files that are wrong, missing or extra are listed, and the exit status is 1 if there is one."""

_REPLAY = """\
Execute parts of recorded runs again from what a campaign ships, and compare (docs/replay.md): the first updates of a
run with its history, the last ones with its published weights, the losses of some documents with its evaluations. By
default for one seed of every arm, as far as that is cheap. Nothing below RESULTS is written. The exit status is 1 if
something differs, nothing could be compared, or a run that was named is not all here."""

_ADOPT = """\
Give recorded results the digest of code that changed since, if running it again gives what was recorded: after a
refactoring, so that nothing is trained again. Of training and evaluation the parts that `soma replay` compares are run
again, of every other step all of it. Anything that is not identical is named, and then nothing is adopted."""

_SNAPSHOT = """\
Record the campaign of dvc.yaml in dvc.lock, so that `dvc push` can share it. Refused unless `snakemake --dry-run` has
nothing to do: DVC would keep what is out of date as readily as what is not. With --partial, the stages that have
something so far: for a campaign that takes several sittings."""


def add_commands(commands: Any) -> None:
    """Add these subcommands to the parser."""
    c = _command(commands, "plan", "what a campaign will cost", _PLAN)
    c.add_argument("--configfile", type=Path, nargs="+", default=[], help="overlays (default: none, campaign small)")
    c.add_argument("--rate", type=float, help="operations per second of your device, for one more line of device-hours")
    c = _command(commands, "status", "what is done, running and left", _STATUS)
    c.add_argument("--configfile", type=Path, nargs="+", default=[], help="overlays (default: none, campaign small)")
    c = _command(commands, "verify", "check every file of a campaign", _VERIFY)
    c.add_argument("results", type=Path, help="folder of the campaign, such as results/small")
    c = _command(commands, "replay", "execute parts of recorded runs again, and compare", _REPLAY)
    c.add_argument("results", type=Path, help="folder of the campaign, such as results/small")
    c.add_argument("runs", nargs="*", metavar="run", help="everything of these runs alone, such as soma-n2-s0")
    c.add_argument("--all", action="store_true", dest="everything", help="everything of all runs")
    c.add_argument("--json", action="store_true", dest="as_json", help="one JSON document instead of lines")
    c.add_argument("--threads", type=int, default=1, help="threads of the arithmetic (default: 1)")
    c.set_defaults(step="replay.run_command")
    c = _command(commands, "adopt", "keep results whose code was refactored, after a replay", _ADOPT)
    c.add_argument("--configfile", type=Path, nargs="+", default=[], help="overlays (default: none, campaign small)")
    c.add_argument(
        "--reason",
        help="adopt also what agrees to some digits, or cannot be compared here, for this reason",
    )
    c.add_argument(
        "--leave", nargs="+", default=[], metavar="CODE", help="leave these to Snakemake, such as measure-precision/cpu"
    )
    c.add_argument("--threads", type=int, default=1, help="threads of the arithmetic (default: 1)")
    c.set_defaults(step="adopt.adopt")
    c = _command(commands, "snapshot", "hand a finished campaign to DVC", _SNAPSHOT)
    c.add_argument("--partial", action="store_true", help="what a stopped run has finished so far")
    c.set_defaults(step="snapshot.snapshot")


def _command(commands: Any, name: str, help_: str, description: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=help_, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.set_defaults(step=f"campaign.{name}", log=None)
    return command
