"""The words after `--configfile`, of which Snakemake takes every one for a configuration file, targets too.

Snakemake reads them before anything of the workflow, except for a profile. The profiles therefore call `check`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

_OPTIONS = ("--configfile", "--configfiles")
_SUFFIXES = (".yaml", ".yml", ".json")


def check(words: Sequence[str]) -> None:
    """End the program with a sentence if a word after `--configfile` is no configuration file.

    Args:
        words: of the command line, such as `sys.argv`.

    Raises:
        SystemExit: with the sentence, which ends Snakemake without a trace.
    """
    for word in _configuration_files(words):
        if not Path(word).exists():
            problem = f"there is no file {word}"
        elif Path(word).is_file() and not word.endswith(_SUFFIXES):  # what is no regular file may be a shell's pipe
            problem = f"{word} is none"
        else:
            continue
        raise SystemExit(
            f"--configfile takes all words that follow for configuration files, and {problem}; "
            f"give targets before it or after `--`, as in: snakemake --cores all --configfile config/toy.yaml -- {word}"
        )


def _configuration_files(words: Sequence[str]) -> Iterator[str]:
    """Yield the words that Snakemake takes for configuration files."""
    taken = False
    for word in words:
        if word == "--":
            return
        if word.startswith("-"):
            taken = word in _OPTIONS
        elif taken:
            yield word
