"""Loading, input and output of the commands that use a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO

import torch

from soma.errors import SomaError
from soma.inference import Ensemble


def load_model(model: str, revision: str | None, k: int | None, device: str, threads: int) -> Ensemble:
    torch.set_num_threads(threads)
    return Ensemble.load(model, revision=revision, k=k, device=device)


@contextmanager
def open_text(name: str) -> Iterator[IO[bytes]]:
    """Open a file, or standard input for `-`; errors of reading and using it name it.

    Raises:
        SomaError: if it cannot be read, or its use raised a `SomaError`.
    """
    try:
        if name == "-" and sys.stdin is None:
            raise SomaError("it is closed; give it a text, or name a file.")
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            yield file
    except OSError as error:
        raise SomaError(
            f"{title(name)} cannot be read ({error.strerror}); name a text file, or - for standard input."
        ) from None
    except SomaError as error:
        raise SomaError(f"{title(name)}: {error}") from None


def title(name: str) -> str:
    return "standard input" if name == "-" else name
