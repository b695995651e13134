"""Arrays on disk (npy), mapped into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from soma.errors import SomaError


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
        raise SomaError(f"{path} is damaged ({error}); delete it and run the rule that makes it.") from None
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != dimensions:
        raise SomaError(
            f"{path} is not an array of {np.dtype(dtype).name} with {dimensions} dimension(s); delete it and run the "
            "rule that makes it."
        )
    return array
