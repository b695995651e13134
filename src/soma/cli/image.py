"""Jobs that run in a container image (`--sdm apptainer`), whose package must be that of the workflow."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from soma.errors import SomaError

VARIABLE = "SOMA_CODE"
"""Variable of the environment in which the workflow tells a job the hash of its own package."""
_SOURCE = Path(__file__).parents[1]


def command() -> str:
    """Return the start of a shell command that runs a step with the image's Python, for a package like this one."""
    return f"{VARIABLE}={_code()} python -m soma.cli"


def check() -> None:
    """Raise a `SomaError` if the workflow that called this process has another package than its image.

    What a job makes would be recorded as made by the workflow's code.
    """
    if VARIABLE in os.environ and os.environ[VARIABLE] != _code():
        raise SomaError(
            "the image holds another version of the package than the workflow; build it again from this checkout: "
            "apptainer build --force soma.sif apptainer.def"
        )


@cache
def _code() -> str:
    """Compute the hash of all source of the package."""
    digest = hashlib.sha256()
    for path in sorted(path for path in _SOURCE.rglob("*") if path.suffix in (".py", ".cpp", ".h")):
        digest.update(f"{path.relative_to(_SOURCE)}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()
