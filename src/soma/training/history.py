"""The history of a training job as a table.

It is built from buffers, without pandas: pyarrow imports pandas to convert lists or arrays, and that takes as long as
many updates of a small model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from soma.training.loop import HISTORY_COLUMNS, Progress

_INTEGERS = ("update", "expert")
_HASHES = ("data_sha256", "probes_sha256")


def history_of(progress: Progress) -> pa.Table:
    """Return the rows of `history.parquet`: HISTORY_COLUMNS, then what the method measured (`Learner.measured`)."""
    rows: list[tuple[float | str, ...]] = [
        (*row, *drawn) for row, drawn in zip(progress.history, progress.drawn, strict=True)
    ]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(HISTORY_COLUMNS)}
    for name in sorted({name for measured in progress.measured for name in measured}):
        columns[name] = [measured.get(name, float("nan")) for measured in progress.measured]
    return pa.table([_array(name, values) for name, values in columns.items()], names=list(columns))


def _array(name: str, values: Sequence[float | str]) -> pa.Array:
    """Return values as int64, text or float64, by the name of their column."""
    if name in _HASHES:
        encoded = [str(value).encode() for value in values]
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
        return pa.Array.from_buffers(pa.string(), len(values), buffers)
    kind = np.int64 if name in _INTEGERS else np.float64
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(kind), len(values), [None, pa.py_buffer(np.array(values, dtype=kind))]
    )
