"""Adoption of recorded results for changed code, after checking that it reproduces them.

A refactoring changes the digests of the code behind recorded files (`soma.workflow.digests`), and Snakemake would make
all of these files again, training included. Adoption runs the changed code and compares: for training and evaluation,
the pieces that `soma replay` compares; for every other step, all outputs, in a throw-away copy of the campaign. If
everything is identical, the records of the files get the new digest, and the evidence is kept beside them.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from soma.accounting.machine import device_name
from soma.commands.replay import compare_runs
from soma.commands.replay.comparison import Comparison, Status
from soma.commands.replay.recorded import read_rows
from soma.commands.rerun import Copy
from soma.config.campaign import BASE, load
from soma.errors import SomaError
from soma.files.atomic import read_json, write_json
from soma.plan import make_plan
from soma.training.job import versions
from soma.workflow import provenance
from soma.workflow.digests import code
from soma.workflow.manifest import ADOPTIONS, refresh_manifest
from soma.workflow.settings import settings_files

_CODE = re.compile(r"'([a-z-]+(?:/[\w+.:-]+)*):([0-9a-f]{64})'")
"""Format in which Snakemake records the code of a step (`soma.workflow.digests.code`)."""


@dataclass
class Outdated:
    """Recorded files whose code has changed since."""

    label: str
    old: str
    """The digest in their records."""
    new: str
    targets: list[str] = field(default_factory=list)
    compared: list[Comparison] = field(default_factory=list)
    """Results of running the code again."""


def adopt(configfile: Sequence[Path], reason: str | None, leave: Sequence[str], threads: int) -> None:
    """Adopt a campaign's recorded results for the current code.

    Args:
        reason: reason to adopt results although numbers agree only to some digits, or files needed for a comparison
            are missing. It is recorded in the evidence.
        leave: codes not to adopt, so that Snakemake makes their files again.

    Raises:
        SomaError: naming the first difference, or what could not be compared.
    """
    plan = make_plan(load(BASE, *configfile))
    results = Path("results") / plan.config.campaign
    provenance.unpack(results)
    records = provenance.records(results)
    outdated, gone = _outdated(records)
    outdated = [each for each in outdated if each.label not in leave]
    if gone:
        print(f"{results}: left to Snakemake, since no step has this code any more: {', '.join(sorted(gone))}")
    if not outdated:
        print(f"{results}: nothing to adopt; every record has the digest of the current code")
        return
    files = ", ".join(f"{each.label} ({len(each.targets)} files)" for each in outdated)
    print(f"{results}: the code has changed for {files}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soma-adopt-") as folder:
        copy = Copy(Path(folder), results, settings_files(plan))
        for each in outdated:
            for comparison in _compare(each, records, results, copy, threads):
                each.compared.append(comparison)
                if comparison.status != "identical":
                    tqdm.write(f"{each.label}: {comparison.line()}", file=sys.stdout)
    counts = Counter(comparison.status for each in outdated for comparison in each.compared)
    _decide(results, outdated, counts, reason)
    _write(results, outdated, records, reason)
    print(
        f"{results}: {sum(len(each.targets) for each in outdated)} files now have the digest of the current code; "
        f"{counts['identical']} comparisons were identical, {counts['agrees']} agreed, {counts['not here']} could not "
        f"be made ({results / ADOPTIONS})"
    )


def _outdated(records: provenance.Records) -> tuple[list[Outdated], set[str]]:
    """Return the files behind every digest that differs from the current code's, and labels that no step has now."""
    outdated: dict[str, Outdated] = {}
    gone: set[str] = set()
    for target, record in sorted(records.items()):
        for label, old in _codes(record):
            try:
                new = code(label).rpartition(":")[2]
            except SomaError:
                gone.add(label)
                continue
            if new != old:
                outdated.setdefault(f"{label}:{old}", Outdated(label, old, new)).targets.append(target)
    return list(outdated.values()), gone


def _codes(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the labels and digests of code in a record."""
    matches = (_CODE.fullmatch(text) for text in record["params"])
    return [(match[1], match[2]) for match in matches if match]


def _compare(
    each: Outdated, records: provenance.Records, results: Path, copy: Copy, threads: int
) -> Iterator[Comparison]:
    """Repeat the work behind an outdated digest: runs by replay, and every other command as it was called."""
    step, rest = each.label.split("/")[0], []
    runs: dict[str, None] = {}
    for target in each.targets:
        inside = Path(target).relative_to(results)
        if step == "train":
            runs[inside.parts[1]] = None
        elif step == "evaluate" and inside.parts[0] == "evaluation" and Path(target).exists():
            runs |= dict.fromkeys(str(run) for run in read_rows(Path(target))["run"].unique())
        else:
            rest.append(target)
    if runs:
        yield from compare_runs(
            results, list(runs), threads=threads, only="training" if step == "train" else "evaluation"
        )
    commands = defaultdict(list)
    for target in rest:
        commands[records[target]["shellcmd"]].append(target)
    for command, targets in tqdm(commands.items(), desc=each.label, disable=None, leave=False):
        yield copy.rerun(command, targets, records[targets[0]]["input"])


def _decide(results: Path, outdated: Sequence[Outdated], counts: Counter[Status], reason: str | None) -> None:
    """Raise `SomaError` unless everything is identical, or nothing differs and a reason covers the rest."""
    everything = [comparison for each in outdated for comparison in each.compared]
    different = next((comparison for comparison in everything if comparison.status == "differs"), None)
    if different:
        raise SomaError(
            f"{results}: nothing was adopted, because {counts['differs']} of {len(everything)} comparisons differ; "
            f"the first is {different.line()}. To let Snakemake rerun code that is meant to change: --leave CODE."
        )
    unsure = next((comparison for comparison in everything if comparison.status != "identical"), None)
    if unsure and reason is None:
        raise SomaError(
            f"{results}: nothing was adopted, because {len(everything) - counts['identical']} of {len(everything)} "
            f"comparisons are not identical; the first is {unsure.line()}. If you have a good reason to adopt anyway, "
            "give it with --reason; it is recorded with the evidence."
        )


def _write(results: Path, outdated: Sequence[Outdated], records: provenance.Records, reason: str | None) -> None:
    """Write the new digests and the evidence for them."""
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": device_name("cpu"),
        **versions(),
        **({"reason": reason} if reason else {}),
    }
    changed: provenance.Records = {}
    rewritten = []
    for each in outdated:
        for target in each.targets:
            record = changed.get(target, records[target])
            old, new = (f"'{each.label}:{digest}'" for digest in (each.old, each.new))
            changed[target] = record | {"params": sorted(new if text == old else text for text in record["params"])}
            if Path(target).name == "run.json" and Path(target).exists():
                _add_to_record(Path(target), each, facts)
                rewritten.append(Path(target).relative_to(results).as_posix())
    path = results / ADOPTIONS
    before = read_json(path) if path.exists() else []
    adopted = [_evidence(each) for each in outdated]
    write_json(path, [*before, facts | {"adopted": adopted}])
    provenance.replace(results, changed)
    refresh_manifest(results, rewritten)


def _add_to_record(path: Path, each: Outdated, facts: Mapping[str, Any]) -> None:
    """Append an adoption to a run's record."""
    record = read_json(path)
    own = [
        comparison.line()
        for comparison in each.compared
        if comparison.run == record["run"]["id"] and comparison.part in (record["part"], None)
    ]
    adoption = {**facts, "code": each.label, "from": each.old, "to": each.new, "compared": own}
    write_json(path, record | {"adoptions": [*record.get("adoptions", []), adoption]})


def _evidence(each: Outdated) -> dict[str, Any]:
    counts = Counter(comparison.status for comparison in each.compared)
    compared = [{k: v for k, v in asdict(c).items() if v not in (None, "")} for c in each.compared]
    return {
        "code": each.label,
        "from": each.old,
        "to": each.new,
        "files": len(each.targets),
        "counts": dict(counts),
        "compared": compared,
    }
