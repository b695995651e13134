"""Snakemake's records of how each file was made, kept beside the files so that they are valid in another clone.

Snakemake compares settings, code and inputs with the records in `.snakemake/metadata`. Without them it relies on
modification times, which neither git nor DVC preserves: it would retrain files that were only copied, or consider files
current that an edit has outdated. `pack` writes the records of a campaign to `results/<campaign>/provenance.json`;
`unpack` gives Snakemake back the records of the files that are present.

The records are Snakemake's own (in the format of the version pinned in pyproject.toml). All outputs are files, which
Snakemake compares by content: the date of a directory would outdate what was made from it in every copy.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

from soma.errors import SomaError
from soma.files.atomic import write_bytes
from soma.files.hashes import sha256_file, sha256_json
from soma.workflow.contents import Contents

STATE = Path(".snakemake")
_RECORDS = STATE / "metadata"
_MARKS = STATE / "provenance"
_PASSING = ("job_hash", "external_jobid", "incomplete")
"""Fields about the process that made a file, of no use to a later one."""
_TIMES = ("starttime", "endtime")
"""Fields that differ between the files of one job."""

Entries = dict[str, dict[str, Any]]
"""For each file, Snakemake's `record` and the hash of the `content` that it describes."""
Records = dict[str, dict[str, Any]]
"""For each file, Snakemake's record."""


def packed(results: Path) -> Path:
    """Return the path of a campaign's records."""
    return results / "provenance.json"


def pack(results: Path, contents: Contents) -> None:
    """Write the records of a campaign's files; those of absent files (not pulled, say) stay as they were."""
    known = _read(packed(results))
    entries = {target: entry for target, entry in known.items() if not Path(target).exists()}
    for target, record in _records(results):
        before = known.get(target)
        # A file that was not remade has not changed.
        same = before is not None and before["record"] == record
        content = before["content"] if same and before else contents.of(Path(target))["sha256"]
        entries[target] = {"record": record, "content": content}
    if entries:
        if entries != known:
            _write(packed(results), entries)
        _mark(results)


def records(results: Path) -> Records:
    """Return Snakemake's records of a campaign's files, including absent ones."""
    return {target: entry["record"] for target, entry in _read(packed(results)).items()} | dict(_records(results))


def replace(results: Path, changed: Records) -> None:
    """Replace records of a campaign's files, for Snakemake and for other clones."""
    entries = _read(packed(results))
    for target, record in changed.items():
        _write_record(target, record)
        known = sha256_file(Path(target)) if Path(target).exists() else entries[target]["content"]
        entries[target] = {"record": record, "content": known}
    _write(packed(results), entries)
    pack(results, Contents(results))


def unpack(results: Path) -> None:
    """Give Snakemake the records of the files that match them or are absent.

    The record of a file with other content is left out: it would make a file from other settings look current.
    """
    entries = _read(packed(results))
    if not entries or _marked(results):
        return
    other = False
    for target, entry in entries.items():
        path = Path(target)
        if path.is_dir():  # as the first edition declared some outputs
            continue
        if path.exists() and sha256_file(path) != entry["content"]:
            other = True
        else:
            _write_record(target, entry["record"])
    if not other:
        _mark(results)


def _read(path: Path) -> Entries:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SomaError(
            f"{path} is not readable JSON ({error}); take the one that belongs to dvc.lock: git checkout HEAD {path}"
        ) from None
    if isinstance(stored, dict):  # as the first edition wrote it: a record for each file
        return stored
    entries: Entries = {}
    for job in stored:
        for target, own in job["files"].items():
            times = {name: own[name] for name in _TIMES if name in own}
            entries[target] = {"record": job["record"] | times, "content": own["content"]}
    return entries


def _write(path: Path, entries: Entries) -> None:
    """Write one line for each job, which its files share, so that a person can read what changed in a diff."""
    jobs: dict[str, dict[str, Any]] = {}
    for target, entry in sorted(entries.items()):
        times = {name: entry["record"][name] for name in _TIMES if name in entry["record"]}
        shared = {name: value for name, value in entry["record"].items() if name not in _TIMES}
        job = jobs.setdefault(sha256_json(shared), {"files": {}, "record": shared})
        job["files"][target] = {"content": entry["content"]} | times
    lines = ",\n".join(json.dumps(job, sort_keys=True, ensure_ascii=False) for job in jobs.values())
    write_bytes(path, f"[\n{lines}\n]\n".encode())


# ------------------------------------------------------------------------------------------------ Snakemake's folder


def _records(results: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the files of a campaign that are present, with their records."""
    present = []
    for path in sorted(_RECORDS.rglob("*")) if _RECORDS.is_dir() else []:
        if path.is_file() and Path(target := _target(path)).is_relative_to(results) and Path(target).is_file():
            record = json.loads(path.read_text(encoding="utf-8"))
            if record.get("shellcmd"):  # shown in the report, never compared
                record["shellcmd"] = record["shellcmd"].replace(sys.executable, "python")
            present.append((target, {k: v for k, v in record.items() if k not in _PASSING}))
    return present


def _target(path: Path) -> str:
    """Return the file that a record describes: the record is named after it in base64, split at the longest possible
    name.
    """
    return urlsafe_b64decode("".join(part.removeprefix("@") for part in path.relative_to(_RECORDS).parts)).decode()


def _write_record(target: str, record: dict[str, Any]) -> None:
    for folder in (_RECORDS, STATE / "incomplete"):  # one alone looks like an older Snakemake's
        folder.mkdir(parents=True, exist_ok=True)
    name, width = urlsafe_b64encode(target.encode()).decode(), os.pathconf(_RECORDS, "PC_NAME_MAX") - 1
    cut = [name[i : i + width] for i in range(0, len(name), width)]
    path = _RECORDS.joinpath(*("@" + part for part in cut[:-1]), cut[-1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record), encoding="utf-8")


def _marker(results: Path) -> Path:
    return _MARKS / f"{results.name}-{sha256_file(packed(results))}"


def _marked(results: Path) -> bool:
    """Return True if Snakemake already has this version of the records; its own are newer since then."""
    return _marker(results).exists()


def _mark(results: Path) -> None:
    _MARKS.mkdir(parents=True, exist_ok=True)
    for old in _MARKS.glob(f"{results.name}-" + "[0-9a-f]" * 64):
        old.unlink()
    _marker(results).touch()
