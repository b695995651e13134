"""Equal parts of a text, for jobs that each make the files of one."""

from __future__ import annotations

import re

from soma.errors import SomaError

WHOLE = "1-of-1"
"""The only part of what is not divided."""


def range_of(part: str, n: int) -> range:
    """Return the elements, of n, of a part that is named as Snakemake names it: `3-of-7`.

    Raises:
        SomaError: there is no such part.
    """
    match = re.fullmatch(r"(\d+)-of-(\d+)", part)
    i, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= i <= parts:
        raise SomaError(f"`{part}` is no part of the training text; name one like 1-of-1 or 3-of-7.")
    return range((i - 1) * n // parts, i * n // parts)
