"""The engines by name, and the choice of one for a device."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

import torch

from soma.config.training import DEVICE
from soma.errors import SomaError
from soma.forward.engine import Engine

log = logging.getLogger("soma.forward")

ENGINES = {
    "cpu": "soma.forward.cpu:CpuEngine",
    "triton": "soma.forward.triton_engine:TritonEngine",
    "torch": "soma.forward.torch_engine:TorchEngine",
    "reference": "soma.forward.reference:ReferenceEngine",
}
"""Class of each engine. Imported when used, so that the results of one engine do not depend on the code of others."""


def create(name: str, device: str = "cpu") -> Engine:
    """Create the engine called `name`; `auto` is the best one available on the device.

    Raises:
        SomaError: if the engine or the device is not available here.
    """
    name, engine = choose(ENGINES, name, device, _best, setting="compute.")
    made: Engine = engine(torch.device(device)) if name in ("triton", "torch") else engine()
    return made


def choose(
    registry: Mapping[str, str], name: str, device: str, best: Callable[[str], str], *, setting: str
) -> tuple[str, Any]:
    """Return the name and the class of an entry of a registry, and make torch's products exact for it.

    Args:
        name: `auto` is replaced by `best(device)`.
        setting: words before `engine` and `device` in messages.

    Raises:
        SomaError: if there is no such entry, or it or the device is not available here.
    """
    _check_device(device, setting)
    # cuDNN and cuBLAS may round operands to TF32 by default, which is too coarse for an eps of 1e-3 (DEVIATIONS.md).
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    name = best(device) if name == "auto" else name
    if name not in registry:
        raise SomaError(f"{setting}engine is `{name}`; use auto, {', '.join(registry)}.")
    if name == "triton" and not device.startswith("cuda") and os.environ.get("TRITON_INTERPRET") != "1":
        raise SomaError(f"{setting}engine is triton, which needs a CUDA device; use auto, cpu or torch.")
    try:
        return name, resolve_name(registry[name])
    except ImportError:
        if name != "triton":
            raise
        raise SomaError(
            f"{setting}engine is triton, which is not installed; install a CUDA build of torch or use torch."
        ) from None


def _check_device(device: str, setting: str) -> None:
    if not re.fullmatch(DEVICE, device):
        raise SomaError(f"{setting}device is {device!a}; use cpu, cuda, cuda:1 or mps.")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SomaError(f"{setting}device is {device}, but torch sees no CUDA device here; use cpu or a CUDA machine.")
    if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
        raise SomaError(f"{setting}device is {device}, but torch numbers {torch.cuda.device_count()} of them from 0.")
    if device == "mps" and not torch.backends.mps.is_available():
        raise SomaError(f"{setting}device is mps, which this machine does not have; use cpu.")


def _best(device: str) -> str:
    """Return the name of the fastest engine available."""
    if device.startswith("cuda"):
        return "torch" if find_spec("triton") is None else "triton"
    if device == "cpu" and resolve_name("soma.forward.cpu:available")():
        return "cpu"
    if device == "cpu":
        log.info(
            "no compiled CPU engine runs at full speed on this machine (it is not built, or emulates fused "
            "multiply-add); using torch, about three times slower."
        )
    return "torch"
