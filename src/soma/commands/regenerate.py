"""The command `soma regenerate`: make every table and figure of a campaign again, and compare them with the published."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from soma.commands.replay.comparison import Comparison
from soma.commands.rerun import Copy
from soma.config.campaign import BASE, load
from soma.errors import SomaError
from soma.plan import make_plan
from soma.workflow import provenance
from soma.workflow.settings import settings_files

STEPS = ("summarise", "summarise-costs", "table", "figure", "metrics", "summary", "page")
"""Steps that read rows and write rows, tables, figures and pages: seconds each, and nothing is trained or measured."""


def regenerate(configfile: Sequence[Path], workers: int) -> None:
    """Run the recorded commands of these steps again, each from the recorded rows, and compare what they write.

    The campaign's folder is not written: the commands run in throw-away copies, as many as there are workers.

    Raises:
        SomaError: if a file differs from the published one, or none could be compared.
    """
    if not 1 <= workers <= 1024:
        raise SomaError(f"--workers is {workers}; give 1 to 1024.")
    plan = make_plan(load(BASE, *configfile))
    results = Path("results") / plan.config.campaign
    commands = _commands(provenance.records(results))
    if not commands:
        raise SomaError(f"{results} has no records of how its tables and figures were made; pull or run it first.")
    comparisons = []
    for comparison in _compared(commands, results, settings_files(plan), workers):
        comparisons.append(comparison)
        if comparison.status not in ("identical", "agrees"):
            tqdm.write(comparison.line(), file=sys.stdout)
    print(_verdict(results, comparisons))


def _commands(records: provenance.Records) -> dict[str, tuple[list[str], list[str]]]:
    """Return the outputs and inputs of every recorded command of these steps."""
    commands: dict[str, tuple[list[str], list[str]]] = {}
    for target, record in sorted(records.items()):
        words = (record.get("shellcmd") or "").split("soma.cli ")[-1].split()
        if words and words[0] in STEPS:
            commands.setdefault(record["shellcmd"], ([], record["input"]))[0].append(target)
    return commands


def _compared(
    commands: Mapping[str, tuple[list[str], list[str]]], results: Path, settings: Mapping[str, Any], workers: int
) -> Iterator[Comparison]:
    """Repeat commands in copies of the campaign, with a progress bar on a terminal."""
    copies: SimpleQueue[Copy] = SimpleQueue()

    def repeated(command: str) -> Comparison:
        copy = copies.get()
        try:
            return copy.rerun(command, *commands[command])
        finally:
            copies.put(copy)

    with ExitStack() as stack:
        for _ in range(min(workers, len(commands))):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="soma-regenerate-"))
            copies.put(Copy(Path(folder), results, settings))
        pool = stack.enter_context(ThreadPoolExecutor(workers))
        waiting = [pool.submit(repeated, command) for command in commands]
        form = "{desc}: {n} of {total} [{elapsed}, {remaining} left]"
        bar = tqdm(total=len(waiting), desc=f"{results} again", bar_format=form, disable=None, leave=False)
        with bar:
            try:
                for done in as_completed(waiting):
                    yield done.result()
                    bar.update()
            finally:
                pool.shutdown(cancel_futures=True)


def _verdict(results: Path, comparisons: Sequence[Comparison]) -> str:
    """Return one line that says whether everything came out as published.

    Raises:
        SomaError: if something did not, or nothing could be compared.
    """
    counts = Counter(comparison.status for comparison in comparisons)
    different = sorted(Path(c.run).name for c in comparisons if c.status == "differs")
    missing = f"; {counts['not here']} more need files that are not here" if counts["not here"] else ""
    made = counts["identical"] + counts["agrees"]
    if different:
        raise SomaError(
            f"{results}: {len(different)} of {made + len(different)} did not come out as published "
            f"({', '.join(different)}); the lines above say where{missing}."
        )
    if not made:
        raise SomaError(f"{results}: nothing could be compared; pull the campaign first: dvc pull {results}")
    kinds = Counter(Path(c.run).parent.name for c in comparisons if c.status != "not here")
    digits = [c.digits for c in comparisons if c.digits is not None]
    how = f"{counts['identical']} byte for byte"
    if digits:
        how += f", {counts['agrees']} to {min(digits)} digits or more"
    return (
        f"{results}: {kinds['tables']} tables, {kinds['figures']} figures and {made - kinds['tables'] - kinds['figures']} "
        f"other results made again from rows; all came out as published ({how}){missing}"
    )
