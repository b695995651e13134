"""Subcommands for using a trained model: `soma models`, `score`, `sample`, `route`, `export` and `demo`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from soma.cli.parsers import add_command

_CORES = os.cpu_count() or 1

_MODELS = """\
Print the runs of a campaign that `soma export` can write as model folders: number of experts, width, parameters, and
the test loss that the campaign measured. Runs whose weights are not in this clone say how to get them."""

_SCORE = """\
Measure how well a model predicts texts, in nats and bits per byte (lower is better): one line per file, and one for all
of them.

A file is read like an evaluation set: in windows of the size that the model was evaluated with, each from an empty
state. The first bytes of a window (the routed prefix) choose the experts and are not scored. Windows overlap by the
prefix, so that every byte after the first prefix is scored once, however long the file is. The interval holds 95 %: it
is a bootstrap over windows, or over files if there are at least ten."""

_SAMPLE = """\
Draw text that may follow a prompt, and print it byte by byte; the prompt itself is not printed.

The model chooses its experts from the first bytes of a text (the routed prefix). While the prefix is incomplete, it
chooses again after every byte, and newly chosen experts read the text from its beginning; once the prefix is complete,
the choice stays. An empty prompt is read as one line feed. Bytes that are not UTF-8 are shown as the replacement
character (--raw writes them unchanged)."""

_ROUTE = """\
Print the experts that a text goes to, nearest first: the similarity (cosine) and distance to each expert's cluster, and
the words that are more frequent in the cluster than elsewhere. Only the first bytes of the file (the routed prefix)
are read."""

_EXPORT = """\
Write a trained run of a campaign as a folder that the other commands and soma.inference.Ensemble.load read: weights,
router, ensemble.json with a hash of every file, and README.md, a model card with the campaign's own measurements."""

_DEMO = """\
Write one or two models as one HTML file that runs them in a browser: weights, router and kernel are in it, it opens
from disk, and it sends nothing anywhere. Two models are shown side by side.

With --campaign, the best run is the one with the lowest ensemble validation loss that was not trained by
backpropagation. Beside it stands a monolith as wide as one of its experts, trained by as many operations, if the
campaign has one."""


def add_commands(commands: Any) -> None:
    """Add these subcommands to the parser."""
    c = add_command(commands, "models", "List the models that a campaign can export", _MODELS)
    c.add_argument("results", type=Path, help="folder of the campaign, such as results/small")

    c = add_command(commands, "score", "Measure nats and bits per byte of files", _SCORE)
    c.add_argument("files", nargs="+", metavar="FILE", help="text files, one document each; - is standard input")
    _model_options(c, threads=_CORES)
    c.add_argument(
        "--json", dest="as_json", action="store_true", help="print JSON, one object per line, instead of a table"
    )

    c = add_command(commands, "sample", "Draw text that may follow a prompt", _SAMPLE)
    c.add_argument("--prompt", default="", help="text to continue (default: empty)")
    c.add_argument("--length", type=int, default=500, help="number of bytes to draw (default: %(default)s)")
    c.add_argument(
        "--temperature",
        type=float,
        default=1.0,
        help="below 1 prefers likely bytes, 0 always takes the likeliest (default: %(default)s)",
    )
    c.add_argument("--top-k", type=int, help="draw only among this many of the likeliest bytes")
    c.add_argument(
        "--top-p", type=float, help="draw only among the fewest bytes that together have this probability, such as 0.9"
    )
    c.add_argument("--seed", type=int, default=0, help="the same seed draws the same text (default: %(default)s)")
    c.add_argument("--show-experts", action="store_true", help="print the chosen experts on standard error")
    c.add_argument("--raw", action="store_true", help="write bytes unchanged, UTF-8 or not")
    _model_options(c, threads=1)

    c = add_command(commands, "route", "Print the experts that a text goes to", _ROUTE)
    c.add_argument("file", metavar="FILE", help="a text file; - is standard input")
    c.add_argument("--terms", type=int, default=8, help="words printed for each expert (default: %(default)s)")
    _model_options(c, threads=1)

    c = add_command(commands, "export", "Write a trained run as a model folder", _EXPORT)
    c.add_argument(
        "--campaign", type=Path, required=True, metavar="FOLDER", help="results of a campaign, such as results/small"
    )
    c.add_argument("--run", required=True, help="name of a run below its runs/, such as soma-n8-s0")
    c.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write; an older one is replaced"
    )
    c.add_argument(
        "--iterate",
        choices=("last", "average"),
        default="last",
        help="the last weights (as in the tables), or their running average (default: %(default)s)",
    )
    c.add_argument("--k", type=int, help="experts averaged by default (default: 4, or all if there are fewer)")

    c = add_command(commands, "demo", "Write models as a page that runs them in a browser", _DEMO)
    which = c.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", action="append", metavar="FOLDER", help="folder of a model; give it twice to compare")
    which.add_argument(
        "--campaign",
        type=Path,
        metavar="FOLDER",
        help="results of a campaign: its best model by validation, beside a monolith of equal operations",
    )
    c.add_argument("--output", type=Path, required=True, metavar="FILE", help="HTML file to write, such as demo.html")


def _model_options(command: argparse.ArgumentParser, threads: int) -> None:
    command.add_argument(
        "--model",
        required=True,
        metavar="FOLDER",
        help="folder of a model, as `soma export` writes it, or owner/name of a repository on the Hugging Face Hub",
    )
    command.add_argument("--revision", help="branch, tag or commit of that repository (default: its main branch)")
    command.add_argument("--k", type=int, help="experts whose predictions are averaged (default: the model's own)")
    command.add_argument("--device", default="cpu", help="cpu, or cuda for a GPU (default: %(default)s)")
    command.add_argument("--threads", type=int, default=threads, help="processor threads (default: %(default)s)")
