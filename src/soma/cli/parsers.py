"""Parsers of the subcommands that a person calls."""

from __future__ import annotations

import argparse
from typing import Any


def add_command(commands: Any, name: str, summary: str, description: str) -> argparse.ArgumentParser:
    """Add the subcommand of `soma.commands.<name>`, whose description keeps its line breaks."""
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.set_defaults(room="commands", log=None, forks=False)
    return command
