"""The command `soma score`: how well a model predicts texts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from math import isnan

import numpy as np

from soma.commands.model_io import load_model, open_text, title
from soma.errors import SomaError
from soma.inference import Score
from soma.inference.score import total

log = logging.getLogger("soma")


def score(
    files: Sequence[str], model: str, revision: str | None, k: int | None, device: str, threads: int, as_json: bool
) -> None:
    """Print one line per file as soon as it is scored and, with several files, one for all that were.

    Raises:
        SomaError: if a file could not be scored; with several, after all others.
    """
    ensemble = load_model(model, revision, k, device, threads)
    show = _json_line if as_json else _table_line(files)
    scores: list[Score] = []
    for name in files:
        try:
            with open_text(name) as file:
                result = ensemble.score(file)
        except SomaError as error:
            if len(files) == 1:
                raise
            log.error(str(error))
            continue
        scores.append(result)
        print(show(name, result), flush=True)
    if len(scores) > 1:
        print(show("all", total(scores)))
    if len(scores) < len(files):
        raise SomaError(f"{len(files) - len(scores)} of {len(files)} files could not be scored; see above.")


def _table_line(files: Sequence[str]) -> Callable[[str, Score], str]:
    """Return what makes a line of the table, the first of them below the names of the columns."""
    width = max(4, *(len(title(name)) for name in files))
    columns = f"{'file':{width}}  {'bytes':>10}  {'windows':>7}  {'nats/byte':>9}  {'bits/byte':>9}"
    heading = [f"{columns}  95 % interval (bits)\n"]

    def line(name: str, result: Score) -> str:
        low, high = (x / float(np.log(2)) for x in (result.low, result.high))
        interval = "one window: none" if isnan(low) else f"{low:.4f} to {high:.4f}, over {result.unit}"
        numbers = f"{result.bytes:10}  {result.windows:7}  {result.nats:9.4f}  {result.bits:9.4f}"
        return f"{heading.pop() if heading else ''}{title(name):{width}}  {numbers}  {interval}"

    return line


def _json_line(name: str, result: Score) -> str:
    values = {
        "file": name,
        "nats_per_byte": result.nats,
        "low": None if isnan(result.low) else result.low,
        "high": None if isnan(result.high) else result.high,
        "bits_per_byte": result.bits,
        "bytes": result.bytes,
        "windows": result.windows,
        "interval_over": result.unit,
    }
    return json.dumps(values, allow_nan=False)
