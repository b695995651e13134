"""The command `soma verify`: compare the files of a campaign with its manifest."""

from __future__ import annotations

from pathlib import Path

from soma.errors import SomaError
from soma.files.hashes import sha256_file
from soma.workflow.manifest import checked_files, recorded_files, stays


def verify(results: Path) -> None:
    """Print every file that is wrong, missing or extra.

    Files that .dvcignore leaves out are checked if present, and may be missing.

    Raises:
        SomaError: if there is such a file.
    """
    known = recorded_files(results)
    present = checked_files(results)
    wrong = [name for name in sorted(known.keys() & present) if _differs(results / name, known[name])]
    absent = known.keys() - present
    missed = sorted(name for name in absent if not stays(results / name))
    problems = [("wrong", wrong), ("missing", missed), ("extra", sorted(present - known.keys()))]
    for problem, names in problems:
        for name in names:
            print(f"{problem:8} {results / name}")
    count = sum(len(names) for _, names in problems)
    if count:
        raise SomaError(
            f"{results}: {count} of {len(known)} files differ from the manifest; delete those that are wrong or "
            "extra and run snakemake again."
        )
    elsewhere = f" ({len(absent)} more are not shipped)" if absent else ""
    print(f"{results}: {len(known.keys() & present)} files, all as the manifest says{elsewhere}")


def _differs(path: Path, known: dict[str, object]) -> bool:
    return path.stat().st_size != known["bytes"] or sha256_file(path) != known["sha256"]
