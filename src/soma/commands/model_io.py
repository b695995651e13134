"""Loading, input and output of the commands that use a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from soma.errors import SomaError
from soma.inference import Ensemble


def load_model(model: Path, k: int | None, device: str, threads: int) -> Ensemble:
    if threads < 1:
        raise SomaError(f"--threads is {threads}; give at least 1.")
    torch.set_num_threads(threads)
    return Ensemble.load(model, k=k, device=device)


def read_text(name: str) -> bytes:
    """Return the bytes of a file, or of standard input for `-`."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise SomaError(
            f"{name} cannot be read ({error.strerror}); name a text file, or - for standard input."
        ) from None


def title(name: str) -> str:
    return "standard input" if name == "-" else name


@contextmanager
def output() -> Iterator[None]:
    """End the command without an error if the reader closes the pipe early (`| head`)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
