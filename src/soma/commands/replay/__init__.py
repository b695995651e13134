"""Replay of parts of recorded runs from a campaign's published files, with a comparison.

Three pieces of a run can be reproduced without training it in full: its first updates, up to the first check in its
history; its last updates, from a resume state that some runs publish, up to the published weights; and the losses of
some documents under those weights. Everything is read from the campaign's folder; nothing is written there.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tqdm import tqdm

from soma.accounting.machine import device_name
from soma.commands.replay.comparison import Agreement, Comparison, Different, NotHere, Status
from soma.commands.replay.evaluation import ROLES, evaluated, evaluation, extent
from soma.commands.replay.recorded import Campaign, Part
from soma.commands.replay.training import first_check, first_leg, last_leg
from soma.errors import SomaError
from soma.evaluation.documents import Role
from soma.training.job import versions
from soma.workflow.manifest import stays

CHEAP = 7.0
"""Most seconds that a first leg took when recorded, for it to be replayed by default."""
_EVALUATION_SECONDS = 0.5
"""Approximate time to score the documents of one evaluation, for estimating the time left."""


@dataclass(frozen=True)
class Piece:
    """One piece of a run that can be replayed."""

    run: str
    part: str | None
    what: str
    seconds: float
    """Time it took when recorded, for estimating the time left."""
    replayed: Callable[[], Agreement]

    def compare(self) -> Comparison:
        """Replay the piece, turning any failure into part of the result."""
        outcome: dict[str, Any]
        try:
            agreement = self.replayed()
            digits = agreement.digits()
            outcome = {"status": "identical"}
            if digits is not None and agreement.allowed is not None:
                outcome = {"status": "agrees", "digits": digits, "reason": agreement.allowed.reason}
        except Different as difference:
            outcome = {"status": "differs", **difference.details}
        except NotHere as missing:
            where = "stays where it was made" if stays(missing.path) else f"dvc pull {missing.path}"
            outcome = {"status": "not here", "reason": f"{missing.path.name}: {where}"}
        except SomaError as error:
            outcome = {"status": "differs", "field": "files", "reason": str(error)}
        return Comparison(self.run, self.part, self.what, **outcome)


def compare_runs(
    results: Path,
    runs: Sequence[str] | None = None,
    everything: bool = False,
    threads: int = 1,
    only: Literal["training", "evaluation"] | None = None,
) -> list[Comparison]:
    """Replay parts of a campaign's runs, with a progress bar on a terminal.

    Args:
        results: folder of the campaign.
        runs: ids of runs of which to replay everything, and no others.
        everything: replay all runs and parts; else, without `runs`, the cheap first legs of one seed of every arm, the
            last legs, and one run of every evaluation.
        only: replay only the legs, or only the evaluations.

    Raises:
        SomaError: if the folder holds no runs, or lacks a requested one.
    """
    torch.set_num_threads(threads)
    pieces = _pieces(Campaign.open(results), runs, everything)
    wanted = [piece for piece in pieces if only is None or (piece.part is None) == (only == "evaluation")]
    return list(_shown(wanted, quiet=False))


def replay(results: Path, runs: Sequence[str], everything: bool, as_json: bool, threads: int) -> None:
    """Print the results of a replay, as one line per piece or one JSON document.

    Raises:
        SomaError: if something differs, nothing could be compared, or files of a requested run are missing.
    """
    torch.set_num_threads(threads)
    campaign = Campaign.open(results)
    comparisons = []
    for comparison in _shown(_pieces(campaign, runs, everything), quiet=as_json):
        comparisons.append(comparison)
        if not as_json:
            tqdm.write(comparison.line(), file=sys.stdout)
            sys.stdout.flush()
    counts = Counter(comparison.status for comparison in comparisons)
    notes = _notes(campaign)
    if as_json:
        print(json.dumps(_document(results, threads, notes, comparisons), indent=1, allow_nan=False))
    else:
        print("\n".join([*notes, f"{results}: {_counted(counts)}"]))
    if counts["differs"]:
        raise SomaError(
            f"{results}: {counts['differs']} of {len(comparisons)} comparisons differ from what was recorded."
        )
    if runs and counts["not here"]:
        raise SomaError(f"{results}: not everything of {', '.join(runs)} is here; see the lines that say so.")
    if not counts["identical"] + counts["agrees"]:
        raise SomaError(f"{results}: nothing could be compared; pull the campaign first: dvc pull {results}")


def _pieces(campaign: Campaign, runs: Sequence[str] | None, everything: bool) -> list[Piece]:
    """Return the pieces to replay."""
    unknown = [run for run in runs or () if run not in campaign.runs]
    if unknown:
        raise SomaError(f"{campaign.results} has no run {unknown[0]}; `ls {campaign.results / 'runs'}` lists its runs.")
    scored = _scored(campaign)
    if runs or everything:
        wanted = dict.fromkeys(runs or campaign.runs)
        legs = [leg for run in wanted for part in campaign.runs[run] for leg in _legs(campaign, part)]
        return legs + _evaluations(campaign, [each for each in scored if each.run in wanted])
    legs = [leg for run in campaign.first_seeds() for leg in _legs(campaign, campaign.runs[run][0], CHEAP)]
    return legs + _evaluations(campaign, _first_of_each(campaign, scored))


def _legs(campaign: Campaign, part: Part, most: float = float("inf")) -> Iterator[Piece]:
    """Yield a part's first leg if it took at most `most` seconds, and its last leg if the run published one."""
    piece = partial(Piece, part.run.id, part.name)
    try:
        last = first_check(part)
    except (NotHere, Different):  # replaying it reports the reason
        yield piece("first updates", 0.0, partial(first_leg, campaign, part))
    else:
        if part.seconds(last) <= most:
            yield piece(f"updates 1-{last}", part.seconds(last), partial(first_leg, campaign, part))
    if part.run.leg is not None:
        what = f"last leg {part.run.leg}-{part.run.updates}"
        yield piece(what, part.seconds(part.run.updates - part.run.leg), partial(last_leg, campaign, part))


@dataclass(frozen=True)
class _Scored:
    """A run in an evaluation's rows."""

    run: str
    role: Role
    rows: Path


def _scored(campaign: Campaign) -> list[_Scored]:
    return [
        _Scored(run, role, path)
        for role in ROLES
        for path, runs in evaluated(campaign, role).items()
        for run in runs
        if run in campaign.runs
    ]


def _first_of_each(campaign: Campaign, scored: Iterable[_Scored]) -> list[_Scored]:
    """Return one run of every evaluation: the first with weights in this clone, else the first."""
    of_rows: dict[Path, list[_Scored]] = defaultdict(list)
    for each in scored:
        of_rows[each.rows].append(each)
    return [next((e for e in group if campaign.has_weights(e.run)), group[0]) for group in of_rows.values()]


def _evaluations(campaign: Campaign, scored: Iterable[_Scored]) -> list[Piece]:
    """Return a piece for every evaluation, but only one for a run without weights, since all would report the same."""
    pieces = {}
    for each in scored:
        here = campaign.has_weights(each.run)
        what = f"{each.role}, {extent(campaign.runs[each.run][0].run)}" if here else "evaluation"
        replayed = partial(evaluation, campaign, each.run, each.role, each.rows)
        pieces[each.run, what] = Piece(each.run, None, what, _EVALUATION_SECONDS if here else 0.0, replayed)
    return list(pieces.values())


def _shown(pieces: Sequence[Piece], quiet: bool) -> Iterator[Comparison]:
    """Replay the pieces, with a progress bar on a terminal."""
    total = sum(piece.seconds for piece in pieces)
    form = "{desc}{percentage:3.0f} % [{elapsed}, {remaining} left]"
    with tqdm(total=total, bar_format=form, file=sys.stderr, disable=True if quiet else None, leave=False) as bar:
        for piece in pieces:
            bar.set_description_str(f"{piece.run}, {piece.what}: ")
            yield piece.compare()
            bar.update(piece.seconds)


def _notes(campaign: Campaign) -> list[str]:
    if any(parts[0].run.leg is not None for parts in campaign.runs.values()):
        return []
    return [f"{campaign.results} has no last legs: its runs are from before resume states were published."]


def _counted(counts: Counter[Status]) -> str:
    return (
        f"{counts['identical']} identical, {counts['agrees']} agree, {counts['differs']} differ, "
        f"{counts['not here']} not here"
    )


def _document(results: Path, threads: int, notes: list[str], comparisons: list[Comparison]) -> dict[str, Any]:
    return {
        "results": str(results),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": device_name("cpu"),
        "threads": threads,
        "versions": versions(),
        "notes": notes,
        "counts": Counter(comparison.status for comparison in comparisons),
        "comparisons": [{k: _json(v) for k, v in asdict(comparison).items()} for comparison in comparisons],
    }


def _json(value: Any) -> Any:
    """Convert NumPy scalars and non-finite numbers to values that JSON can represent."""
    value = value.item() if isinstance(value, np.generic) else value
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
