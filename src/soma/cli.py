"""Command line with one subcommand per workflow rule, and those of `cli_models` and `cli_campaign`.

Libraries are imported by the step that needs them.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from soma import cli_campaign, cli_models, unwritable
from soma.errors import SomaError

log = logging.getLogger("soma")

_ROLES = ("validation", "test", "external")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; print and log a `SomaError` as one sentence and return exit status 1."""
    args = _parser().parse_args(argv)
    options = {k: v for k, v in vars(args).items() if k not in ("log", "command", "step")}
    try:
        _start_logging(args.log)
        _run(args.step, options)
    except SomaError as error:
        log.error(str(error))
        return 1
    except BrokenPipeError:  # the reader of our output has stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        said = unwritable.sentence(error)
        if said is None:
            log.exception(_UNEXPECTED, args.command)
            return 2
        log.error(said)
        return 1
    except KeyboardInterrupt:
        log.error("interrupted")
        return 130
    except Exception:
        log.exception(_UNEXPECTED, args.command)
        return 2
    return 0


_UNEXPECTED = "unexpected error in `soma %s`; please report it with this trace"


def _start_logging(path: Path | None) -> None:
    """Send messages to the terminal and, with --log, to the rule's log file."""
    logging.raiseExceptions = False  # on a full disk the log cannot be written either; do not report that as well
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, mode="w", encoding="utf-8"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", handlers=handlers)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soma",
        description="Use a trained model (score, sample, route, export), look at a campaign (plan, status, verify), or "
        "run one step of the SOMA reproduction; Snakemake calls the steps (`snakemake --cores all`).",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    cli_models.add_commands(commands)
    cli_campaign.add_commands(commands)

    def add(name: str, step: str, help_: str, *paths: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help_, description=help_)
        command.add_argument("--log", type=Path, help="also write messages to this file")
        for path in paths:
            command.add_argument(f"--{path}", type=Path, required=True)
        command.set_defaults(step=step)
        return command

    add("download", "download.download_source", "fetch a source's documents", "settings", "output")
    c = add("encode", "encode.encode_role", "documents to one byte file and an index", "settings", "source", "output")
    c.add_argument("--role", choices=("train", *_ROLES), required=True)
    c = add("build-set", "sets.build_set", "windows of an evaluation set", "settings", "train", "corpus", "output")
    c.add_argument("--role", choices=_ROLES, required=True)

    add("fit-features", "features.fit", "fit tf-idf and SVD", "settings", "train", "output")
    c = add("transform", "features.transform", "features of every window", "settings", "train", "features", "output")
    c.add_argument("--workers", type=int, default=1)
    c = add("fit-router", "clusters.router", "balanced clusters", "settings", "features", "vectors", "output")
    c.add_argument("--experts", type=int, required=True)
    add("assign", "clusters.assign", "the cluster of every window",
        "settings", "train", "features", "vectors", "router", "labels", "clusters")  # fmt: skip
    c = add("shard", "shard.shard", "window ids of every expert", "settings", "train", "output")
    c.add_argument("--partition", choices=("clusters", "random", "iid"), required=True)
    c.add_argument("--experts", type=int, required=True)
    c.add_argument("--labels", type=Path)

    c = add("train", "verified.train_part", "train experts; continues where it stopped",
            "settings", "train", "shards", "runs", "resume", "output")  # fmt: skip
    c.add_argument("--part", required=True)
    c.add_argument("--start", type=Path, nargs="+", default=[])
    c.add_argument("--head", type=Path)
    c.add_argument("--workers", type=int, default=1)
    _compute_options(c)
    c = add("evaluate", "evaluate.evaluate_group", "per-document losses of a group of runs",
            "settings", "windows", "runs", "routing", "output")  # fmt: skip
    c.add_argument("--role", choices=_ROLES, required=True)
    _compute_options(c)
    add("choose", "choose.choose", "the runs of the best setting of the search", "settings", "validation", "output")
    c = add("measure", "measured.measure", "a measurement at saved checkpoints", "settings", "results", "output")
    c.add_argument("--name", required=True)
    _compute_options(c)
    c = add("summarise", "summarise.summarise", "rows that tables and figures show",
            "settings", "evaluation", "measurements", "runs", "output")  # fmt: skip
    c.add_argument("--name", required=True)
    c = add("summarise-costs", "costs.summarise_costs", "the six cost quantities", "settings", "runs", "output")
    c.add_argument("--benchmarks", type=Path, nargs="+", required=True)
    c = add(
        "table", "report.write_table", "one table", "settings", "measurements", "sets", "routing", "paper", "output"
    )
    c.add_argument("--name", required=True)
    c = add("figure", "report.write_figure", "one figure", "settings", "measurements", "paper", "output")
    c.add_argument("--name", required=True)
    add("metrics", "metrics.write_metrics", "the numbers of `dvc metrics`", "settings", "measurements", "output")
    add("summary", "report.write_summary", "the first page", "settings", "measurements", "runs", "tables", "output")
    return parser


def _compute_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--compute", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)


def _run(step: str, options: dict[str, Any]) -> None:
    """Call `soma.steps.<step>`."""
    if "threads" in options:
        os.environ["OMP_NUM_THREADS"] = str(options["threads"])  # before torch is imported
    module, function = step.split(".")
    getattr(importlib.import_module(f"soma.steps.{module}"), function)(**options)


if __name__ == "__main__":
    sys.exit(main())
