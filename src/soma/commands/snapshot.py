"""Recording of a campaign with DVC."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from soma.config.campaign import read_yaml
from soma.errors import SomaError
from soma.workflow import provenance
from soma.workflow.contents import Contents
from soma.workflow.manifest import write_manifest

_STAGES = Path("dvc.yaml")


def snapshot(partial: bool) -> None:
    """Record the campaign of dvc.yaml in dvc.lock, like `dvc commit`, once Snakemake has nothing left to do for it.

    Args:
        partial: record the stages that a stopped run has completed so far.

    Raises:
        SomaError: if a product is out of date, or a file tracked by DVC is missing.
    """
    pipeline = read_yaml(_STAGES)
    values = pipeline["vars"][0]

    def filled(text: str) -> str:
        for name, value in values.items():
            text = text.replace(f"${{{name}}}", value)
        return text

    results = Path("results") / values["campaign"]
    stages = pipeline["stages"]
    here = [name for name, stage in stages.items() if not _missing(stage, filled)]
    if partial:
        _record(results, here)
        return
    _check_up_to_date(results, shlex.split(filled(stages["products"]["cmd"])))
    missing = [path for stage in stages.values() for path in _missing(stage, filled)]
    if missing:
        raise SomaError(
            f"{missing[0]} is missing ({len(missing)} outputs of dvc.yaml are), so the campaign was not recorded; "
            "`dvc pull` restores outputs that were recorded before, `snakemake` makes the others."
        )
    _record(results, here)


def _missing(stage: Mapping[str, Any], filled: Callable[[str], str]) -> list[Path]:
    outputs = (Path(filled(next(iter(output)))) for output in (*stage["outs"], *stage.get("metrics", [])))
    return [path for path in outputs if not path.exists()]


def _record(results: Path, stages: Sequence[str]) -> None:
    # A run that ended right after its last job did not write the manifest or the provenance.
    contents = Contents(results)
    write_manifest(results, contents)
    provenance.pack(results, contents)
    for stage in stages:
        if _run("dvc", "commit", "--quiet", "--force", stage).returncode:
            raise SomaError(f"DVC failed to record {stage} of {results}; see its message above.")
    print(
        f"{', '.join(stages)} of {results} recorded in dvc.lock; now: git add dvc.lock {results}, git commit, dvc push"
    )


def _check_up_to_date(results: Path, command: list[str]) -> None:
    """Raise `SomaError` unless a dry run of the whole campaign's Snakemake command has nothing to do."""
    dry_run = _run(*command, "--dry-run", capture_output=True, text=True)
    messages = dry_run.stdout + dry_run.stderr
    if dry_run.returncode:
        raise SomaError(f"Snakemake could not plan the campaign: {' '.join(messages.split())}")
    # A dry run exits with 0 even if there is something to do.
    if "Nothing to be done" not in messages:
        raise SomaError(
            f"{results} is out of date with its settings or code, so it was not recorded; "
            f"run `{shlex.join(command)}` first (with -n it lists what is left to do)."
        )


def _run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *words], check=False, **options)
