"""The command `soma score`: how well a model predicts texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isnan
from pathlib import Path

import numpy as np

from soma.commands.model_io import load_model, output, read_text, title
from soma.errors import SomaError
from soma.inference import Score
from soma.inference.score import total


def score(files: Sequence[str], model: Path, k: int | None, device: str, threads: int, as_json: bool) -> None:
    """Print one line per file and, with several files, one for all."""
    ensemble = load_model(model, k, device, threads)
    rows: list[tuple[str, Score]] = []
    with output():
        for name in files:
            data = read_text(name)
            try:
                rows.append((name, ensemble.score(data)))
            except SomaError as error:
                raise SomaError(f"{title(name)}: {error}") from None
        if len(rows) > 1:
            rows.append(("all", total([result for _, result in rows])))
        lines = _score_json(rows) if as_json else _score_table(rows)
        print("\n".join(lines))


def _score_table(rows: Sequence[tuple[str, Score]]) -> list[str]:
    width = max(4, *(len(title(name)) for name, _ in rows))
    lines = [
        f"{'file':{width}}  {'bytes':>10}  {'windows':>7}  {'nats/byte':>9}  {'bits/byte':>9}  95 % interval (bits)"
    ]
    for name, result in rows:
        low, high = (x / float(np.log(2)) for x in (result.low, result.high))
        interval = "one window: none" if isnan(low) else f"{low:.4f} to {high:.4f}, over {result.unit}"
        numbers = f"{result.bytes:10}  {result.windows:7}  {result.nats:9.4f}  {result.bits:9.4f}"
        lines.append(f"{title(name):{width}}  {numbers}  {interval}")
    return lines


def _score_json(rows: Sequence[tuple[str, Score]]) -> list[str]:
    return [
        json.dumps(
            {
                "file": name,
                "nats_per_byte": result.nats,
                "low": None if isnan(result.low) else result.low,
                "high": None if isnan(result.high) else result.high,
                "bits_per_byte": result.bits,
                "bytes": result.bytes,
                "windows": result.windows,
                "interval_over": result.unit,
            }
        )
        for name, result in rows
    ]
