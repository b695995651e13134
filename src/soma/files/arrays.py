"""Arrays on disk (npy), mapped into memory, with a checksum behind their values.

Readers of npy files ignore what comes after the values. The checksum is CRC-32, which is enough against damage and
takes half the time of SHA-256.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from soma.errors import SomaError
from soma.files.atomic import atomic_path

_AGAIN = "delete it and run the rule that makes it"
_MARK = b"crc32"
_BLOCK = 1 << 24


@contextmanager
def new_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Write an array from its first row to its last, atomically; yields a function that takes the next rows."""
    kind, checksum = np.dtype(dtype).newbyteorder("<"), 0
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        header = {"descr": kind.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)

        def write(rows: NDArray[Any]) -> None:
            nonlocal checksum
            content = np.ascontiguousarray(rows, kind).tobytes()
            checksum = zlib.crc32(content, checksum)
            file.write(content)

        yield write
        file.write(_MARK + checksum.to_bytes(4, "little"))


def check_array(path: Path) -> None:
    """Raise a `SomaError` unless an array's values have their checksum; those of other writers have none."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    with path.open("rb") as file:
        file.seek(array.offset)
        checksum, left = 0, array.nbytes
        while left and (block := file.read(min(_BLOCK, left))):
            checksum, left = zlib.crc32(block, checksum), left - len(block)
        recorded = file.read()
    if recorded and recorded != _MARK + checksum.to_bytes(4, "little"):
        raise SomaError(f"{path} does not have the values that it was written with; {_AGAIN}.")


def open_array(path: Path, dtype: DTypeLike, dimensions: int) -> NDArray[Any]:
    """Map an array of a dtype and a number of dimensions, without reading its values.

    Raises:
        SomaError: if the file is missing, truncated, or holds another array.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise SomaError(f"{path} is missing; run the rule that makes it (snakemake {path}).") from None
    except (ValueError, OSError, EOFError) as error:
        raise SomaError(f"{path} is damaged ({error}); {_AGAIN}.") from None
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != dimensions:
        raise SomaError(f"{path} is not an array of {np.dtype(dtype).name} with {dimensions} dimension(s); {_AGAIN}.")
    return array


def read_parts(paths: Sequence[Path], dtype: DTypeLike) -> NDArray[Any]:
    """Read the parts of a vector, in order, as one; raise a `SomaError` for a part that is missing or damaged."""
    parts = []
    for path in paths:
        parts.append(open_array(path, dtype, 1))
        check_array(path)
    return np.concatenate(parts)
