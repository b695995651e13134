"""Subcommands of the workflow: one for each step, as the rules call it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from soma.catalogue import FIGURES, MEASUREMENTS, SUMMARIES, TABLES

_ROLES = ("validation", "test", "external")
_BENCHMARKED = (
    "download", "encode", "join", "evaluation-set",
    "fit-features", "transform", "fit-router", "assign", "describe-clusters", "shard",
)  # fmt: skip
"""Steps whose time and memory Snakemake records. They run by themselves, because it would see the client of a fork."""


def add_commands(commands: Any) -> None:
    """Add these subcommands to the parser."""

    def add(name: str, summary: str, *paths: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(name, description=f"{summary}.")
        command.set_defaults(room="steps", forks=name not in _BENCHMARKED)
        command.add_argument("--log", type=Path, help="write messages to this file instead")
        for path in paths:
            command.add_argument(f"--{path}", type=Path, required=True)
        return command

    add("download", "Download the documents of a source", "settings", "output")
    c = add("encode", "Write documents as one byte file with an index", "settings", "source", "output")
    c.add_argument("--role", choices=("train", *_ROLES), required=True)
    _part_option(c)
    c = add("join", "Join the parts of an encoded text", "output")
    c.add_argument("--parts", type=Path, nargs="+", required=True)
    c = add("evaluation-set", "Choose the windows of an evaluation set", "settings", "train", "corpus", "output")
    c.add_argument("--role", choices=_ROLES, required=True)

    add("fit-features", "Fit tf-idf weights and an SVD on a sample of windows", "settings", "train", "output")
    c = add("transform", "Compute the features of a part of the windows", "settings", "train", "features", "output")
    c.add_argument("--workers", type=int, default=1)
    _part_option(c)
    c = add("fit-router", "Fit balanced clusters", "settings", "features", "output")
    c.add_argument("--vectors", type=Path, nargs="+", required=True)
    c.add_argument("--experts", type=int, required=True)
    c = add("assign", "Assign every window of a part to a cluster",
            "settings", "train", "features", "vectors", "router", "output")  # fmt: skip
    _part_option(c)
    c = add("describe-clusters", "Describe the clusters of a router",
            "settings", "train", "features", "router", "output")  # fmt: skip
    c.add_argument("--labels", type=Path, nargs="+", required=True)
    c = add("shard", "Divide the windows among experts", "settings", "train", "output")
    c.add_argument("--partition", choices=("clusters", "random", "iid"), required=True)
    c.add_argument("--experts", type=int, required=True)
    c.add_argument("--labels", type=Path, nargs="+", default=[], help="of `clusters`, all parts in order")

    c = add("train", "Train experts, from their last saved state if there is one",
            "settings", "train", "shards", "runs", "resume", "output")  # fmt: skip
    c.add_argument("--part", required=True)
    c.add_argument("--start", type=Path, nargs="+", default=[])
    c.add_argument("--head", type=Path)
    c.add_argument("--code", default="", help="code of the step, as the workflow records it")
    c.add_argument("--workers", type=int, default=1)
    c.add_argument("--nodes", type=int, default=1)
    _compute_options(c)
    c = add("evaluate", "Measure the losses of a group of runs on every document of a set",
            "settings", "windows", "runs", "routing", "output")  # fmt: skip
    c.add_argument("--role", choices=_ROLES, required=True)
    _compute_options(c)
    add("evaluate-ngrams", "Measure the losses of n-gram models of the training text on every document of every set",
        "train", "validation", "test", "external", "output")  # fmt: skip
    add("choose", "Name the runs of the best setting of the search", "settings", "validation", "output")
    c = add("measure", "Take one measurement at saved checkpoints", "settings", "results", "output")
    c.add_argument("--name", choices=MEASUREMENTS, metavar="NAME", required=True)
    _compute_options(c)

    c = add("summarise", "Compute rows that tables and figures show", "settings", "results", "output")
    c.add_argument("--name", choices=SUMMARIES, metavar="NAME", required=True)
    c = add("summarise-costs", "Add up the six cost quantities of every run", "settings", "runs", "output")
    c.add_argument("--benchmarks", type=Path, nargs="+", required=True)
    for name, summary, entries in (("table", "Write one table", TABLES), ("figure", "Draw one figure", FIGURES)):
        c = add(name, summary, "settings", "results", "paper", "output")
        c.add_argument("--name", choices=entries, metavar="NAME", required=True)
    add("metrics", "Write the numbers that pages quote, and those of `dvc metrics`",
        "settings", "results", "numbers", "output")  # fmt: skip
    add("summary", "Write the first page of a campaign", "settings", "results", "paper", "output")
    c = add(
        "page", "Write the page to read, from the products that are there", "settings", "results", "paper", "output"
    )
    c.add_argument("--story", type=Path, help="what the campaign found in words, such as docs/results.template.md")


def _part_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", default="1-of-1", help="such as 3-of-7")


def _compute_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--compute", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
