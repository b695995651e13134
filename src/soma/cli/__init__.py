"""The command line `soma`: one subcommand for each step of the workflow and for each command that a person calls.

Subcommand `fit-router` calls `fit_router` of `soma.steps.fit_router`, and `score` calls `score` of
`soma.commands.score`; libraries are imported by the module that needs them.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import soma
from soma.cli import campaign, forks, image, models, steps
from soma.errors import SomaError, lacks_extra
from soma.files import disk_errors

log = logging.getLogger("soma")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; print and log a `SomaError` as one sentence and return exit status 1."""
    words = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(words)
    if args.forks and (status := forks.run(_module(args.room, args.command), words)) is not None:
        return status
    options = {k: v for k, v in vars(args).items() if k not in ("log", "command", "room", "forks")}
    try:
        _print_anything()
        with _logging(args.log):
            return _ended(args.room, args.command, options)
    except OSError as error:  # --log names no file that can be written
        log.error(disk_errors.sentence(error))
        return 1


def _ended(room: str, command: str, options: dict[str, Any]) -> int:
    """Run a subcommand and return its exit status, after saying what was wrong."""
    try:
        _run(room, command, options)
        sys.stdout.flush()
    except SomaError as error:
        log.error(str(error))
        return 1
    except BrokenPipeError:  # the reader of our output has stopped reading
        _give_up_output()
        return 0
    except MemoryError as error:
        log.error(f"memory ran out ({error or 'no size is known'}); use a larger machine, or less at once.")
        return 1
    except OSError as error:
        sentence = disk_errors.sentence(error)
        if sentence is None:
            log.exception(_UNEXPECTED, command)
            return 2
        log.error(sentence)
        _give_up_output()
        return 1
    except KeyboardInterrupt:
        log.error("interrupted")
        return 130
    except ModuleNotFoundError as error:
        lack = lacks_extra(f"`soma {command}`", error)
        if lack is None:
            log.exception(_UNEXPECTED, command)
            return 2
        log.error(str(lack))
        return 1
    except Exception:
        log.exception(_UNEXPECTED, command)
        return 2
    return 0


def _print_anything() -> None:
    """Let no print fail: show characters that the encoding lacks as escapes, and drop what a closed output is given."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _give_up_output() -> None:
    """Drop what standard output does not take, so that the end of the process does not fail on it once more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_THREADS = 1024
"""Threads of a process, at most."""
_UNEXPECTED = "unexpected error in `soma %s`; please report it with this trace"


@contextmanager
def _logging(path: Path | None) -> Iterator[None]:
    """Send messages to the terminal or, with --log, they and all of standard error to the rule's log file."""
    logging.raiseExceptions = False  # on a full disk the log cannot be written either; do not report that as well
    with _standard_error(path) as stream:
        handler = logging.StreamHandler(stream)
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", handlers=[handler]
        )
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # one line for every request of a download
        try:
            yield
        finally:
            logging.getLogger().removeHandler(handler)


@contextmanager
def _standard_error(path: Path | None) -> Iterator[TextIO]:
    """Let standard error be a file, for libraries and child processes too, and yield it; None leaves it as it is."""
    if path is None:
        yield sys.stderr
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if "WORLD_SIZE" not in os.environ:  # else this is a worker, which adds to the log that its job has begun
        path.write_bytes(b"")
    with path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1) as file:
        terminal = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


_DESCRIPTION = """\
Look after a campaign, check what it published, and use its models. Snakemake runs the experiments themselves:
`snakemake --cores all`."""
_STEPS = """\
steps of the workflow, which Snakemake calls (`soma STEP --help` describes one):
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soma", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    once: dict[str, Any] = {"dest": argparse.SUPPRESS, "default": argparse.SUPPRESS}  # no argument of a subcommand
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version", **once)
    shells = ("bash", "zsh", "tcsh")
    parser.add_argument("--print-completion", action=_Completion, choices=shells, help="print a script", **once)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command", title="commands")
    for group in (campaign, models):
        group.add_commands(commands)
    called = set(commands.choices)
    steps.add_commands(commands)
    names = ", ".join(name for name in commands.choices if name not in called)
    parser.epilog = _STEPS + textwrap.indent(textwrap.fill(names, 78), "  ")
    return parser


class _Version(argparse.Action):
    """Print the version of the installed package."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(f"soma {soma.__version__}")
        parser.exit()


class _Completion(argparse.Action):
    """Print a script that completes subcommands, options and file names in a shell."""

    def __call__(self, parser: argparse.ArgumentParser, _: object, shell: Any, __: str | None = None) -> None:
        try:
            import shtab  # no step needs it
        except ModuleNotFoundError as error:
            parser.exit(1, f"{lacks_extra('--print-completion', error)}\n")

        for command in _subcommands(parser).values():
            for action in command._actions:
                if action.type is Path:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(parser, shell))
        parser.exit()


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of every subcommand, by name."""
    (group,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(group.choices)


def _run(room: str, command: str, options: dict[str, Any]) -> None:
    """Call the function that a subcommand names, in the module of its name, in a room of `soma`."""
    image.check()
    if not 1 <= options.get("threads", 1) <= _THREADS:
        raise SomaError(f"--threads is {options['threads']}; give 1 to {_THREADS}.")
    if "threads" in options:
        os.environ["OMP_NUM_THREADS"] = str(options["threads"])  # before torch is imported
    function = command.replace("-", "_")
    getattr(importlib.import_module(_module(room, command)), function)(**options)


def _module(room: str, command: str) -> str:
    return f"soma.{room}.{command.replace('-', '_')}"
