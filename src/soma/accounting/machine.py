"""Name of the hardware that times were measured on."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def device_name(device: str | torch.device) -> str:
    """Return the name of the GPU, or of the processor if the device is the CPU."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
