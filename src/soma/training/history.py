"""The history of a training job: what every check of the schedule measured, in arrays that grow.

The table is built from buffers, without pandas: pyarrow imports pandas to convert lists or arrays, and that takes as
long as many updates of a small model.

Shapes: R rows, K measured quantities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

HISTORY_COLUMNS = (
    "update", "expert", "train_loss", "expert_validation", "lr", "eps", "data_sha256", "probes_sha256",
)  # fmt: skip
_NUMBERS, _CHAINS = HISTORY_COLUMNS[:6], HISTORY_COLUMNS[6:]
_INTEGERS = ("update", "expert")


class History:
    """Rows of HISTORY_COLUMNS, then what the method measured (`Learner.measured`)."""

    def __init__(self) -> None:
        self._numbers = _Growing(np.dtype(np.float64), (len(_NUMBERS),))
        self._chains = _Growing(np.dtype(np.uint8), (len(_CHAINS), 32))
        self._measured: dict[str, _Growing] = {}

    def __len__(self) -> int:
        """Return the number of rows (R)."""
        return len(self._numbers)

    def append(self, numbers: tuple[float, ...], chains: Mapping[str, str], measured: Mapping[str, float]) -> None:
        """Add a row.

        Args:
            numbers: values of the numeric HISTORY_COLUMNS.
            chains: SHA-256 of the `data` and `probes` drawn so far (`Learner.chains`), for methods that have them.
            measured: what the method measured on this update.
        """
        rows = len(self)
        self._numbers.append(numbers)
        drawn = np.zeros((len(_CHAINS), 32), np.uint8)
        for i, name in enumerate(("data", "probes")):
            if chain := chains.get(name):
                drawn[i] = np.frombuffer(bytes.fromhex(chain), np.uint8)
        self._chains.append(drawn)
        for name in {*measured, *self._measured}:
            column = self._measured.setdefault(name, _Growing.filled(rows))
            column.append(measured.get(name, float("nan")))

    @property
    def numbers(self) -> NDArray[np.float64]:
        """The numeric HISTORY_COLUMNS, [R, 6]."""
        return self._numbers.values

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a numeric column, [R]."""
        return self.numbers[:, _NUMBERS.index(name)]

    def tensors(self) -> dict[str, Tensor]:
        """Return the rows as tensors, of which `from_tensors` makes them again."""
        arrays = {"numbers": self._numbers, "chains": self._chains}
        arrays |= {f"measured/{name}": column for name, column in self._measured.items()}
        return {name: torch.from_numpy(column.values) for name, column in arrays.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> History:
        """Return the rows that `tensors` returned."""
        out = cls()
        for name, tensor in tensors.items():
            group, _, column = name.partition("/")
            grown = _Growing.holding(tensor.numpy())
            if group == "measured":
                out._measured[column] = grown
            else:
                setattr(out, f"_{group}", grown)
        return out

    def table(self) -> pa.Table:
        """Return the rows of `history.parquet`."""
        numbers, chains = self._numbers.values, self._chains.values
        columns = {name: _numbers(numbers[:, i], name in _INTEGERS) for i, name in enumerate(_NUMBERS)}
        columns |= {name: _texts(chains[:, i]) for i, name in enumerate(_CHAINS)}
        columns |= {name: _numbers(self._measured[name].values) for name in sorted(self._measured)}
        return pa.table(list(columns.values()), names=list(columns))


class _Growing:
    """An array that grows at its first axis, by doubling."""

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> None:
        self._data, self._used = np.empty((16, *shape), dtype), 0

    @classmethod
    def holding(cls, values: NDArray[Any]) -> _Growing:
        out = cls(values.dtype, values.shape[1:])
        out._data, out._used = values, len(values)
        return out

    @classmethod
    def filled(cls, rows: int) -> _Growing:
        """Return a column of numbers that are missing so far."""
        return cls.holding(np.full(rows, np.nan))

    def __len__(self) -> int:
        return self._used

    @property
    def values(self) -> NDArray[Any]:
        return self._data[: self._used]

    def append(self, value: Any) -> None:
        if self._used == len(self._data):
            larger = np.empty((max(16, 2 * self._used), *self._data.shape[1:]), self._data.dtype)
            larger[: self._used] = self._data
            self._data = larger
        self._data[self._used] = value
        self._used += 1


def _numbers(values: NDArray[np.float64], integers: bool = False) -> pa.Array:
    plain = np.ascontiguousarray(values, dtype=np.int64 if integers else np.float64)
    return pa.Array.from_buffers(pa.from_numpy_dtype(plain.dtype), len(plain), [None, pa.py_buffer(plain)])


def _texts(digests: NDArray[np.uint8]) -> pa.Array:
    """Return digests [R, 32] in hexadecimal; a digest of zeros, of a method without chains, is an empty text."""
    present = digests.any(axis=1)
    text = np.frombuffer(digests[present].tobytes().hex().encode(), np.uint8)
    ends = np.concatenate([[0], np.cumsum(64 * present)])
    # 32-bit offsets end at 2 GiB, which is 33 million rows.
    kind, width = (pa.string(), np.int32) if ends[-1] < 1 << 31 else (pa.large_string(), np.int64)
    return pa.Array.from_buffers(kind, len(digests), [None, pa.py_buffer(ends.astype(width)), pa.py_buffer(text)])
