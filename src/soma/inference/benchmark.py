"""Speed of complete requests (Table 12): routing, gathering, forward, averaging, and losses back in host memory.

A request is one window: R routed bytes and W - R scored bytes. Times cover complete batches of requests; the kernel
returns only when all its results are ready, and a GPU's results are copied to the host, so nothing is left in flight.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from soma.accounting.machine import device_name
from soma.inference.model import Ensemble

WARM_UPS, REPEATS = 2, 7


def measure(
    ensemble: Ensemble, windows: NDArray[np.uint8], *, repeats: int = REPEATS, warm_ups: int = WARM_UPS
) -> dict[str, Any]:
    """Measure throughput, latency, share of routing and peak memory of one ensemble on one batch of requests.

    Args:
        windows: bytes [n, W + 1], one request per row; the last byte is only a target.

    Returns:
        One row: `requests`, sizes, `seconds` per batch (median, `seconds_min`, `seconds_max`),
        `bytes_per_second` (W input bytes per request), `scored_bytes_per_second`, `latency_seconds` (median for a batch
        of one request), `routing_share` (median), `peak_bytes` and its kind, engine, device, threads.
    """
    experts, runner = ensemble.experts, ensemble.runner
    memory = _Peak(ensemble.device)
    totals, routing = timed(lambda: _complete(ensemble, windows), repeats, warm_ups)
    peak, kind = memory.read()
    alone, _ = timed(lambda: _complete(ensemble, windows[:1]), repeats, warm_ups)
    n, width = windows.shape
    seconds = median(totals)
    return {
        "experts": len(experts),
        "width": experts.spec.width,
        "depth": experts.spec.depth,
        "k": ensemble.k,
        "parameters": experts.parameters,
        "requests": n,
        "window": width - 1,
        "prefix": ensemble.prefix,
        "seconds": seconds,
        "seconds_min": min(totals),
        "seconds_max": max(totals),
        "bytes_per_second": n * (width - 1) / seconds,
        "scored_bytes_per_second": n * (width - 1 - ensemble.prefix) / seconds,
        "latency_seconds": median(alone),
        "routing_share": median(r / t for r, t in zip(routing, totals, strict=True)),
        "peak_bytes": peak,
        "peak_kind": kind,
        "weight_bytes": 4 * experts.parameters,
        "engine": runner.name,
        "device": device_name(ensemble.device),
        "threads": torch.get_num_threads(),
        "repeats": repeats,
    }


def timed(work: Callable[[], float], repeats: int, warm_ups: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each repeat, and the seconds of routing within it, as returned by `work`."""
    totals, inside = [], []
    for i in range(warm_ups + repeats):
        started = time.perf_counter()
        routing = work()
        elapsed = time.perf_counter() - started
        if i >= warm_ups:
            totals.append(elapsed)
            inside.append(routing)
    return totals, inside


def _complete(ensemble: Ensemble, windows: NDArray[np.uint8]) -> float:
    """Answer a batch of requests and return the seconds spent on routing."""
    started = time.perf_counter()
    selected = ensemble.select(windows)
    routed = time.perf_counter() - started
    ensemble.losses(windows, selected)
    return routed


class _Peak:
    """Peak memory use since creation: the device's for a GPU, else the process's."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.reset = False
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: resets the high-water mark
            self.reset = True
        except OSError:
            pass

    def read(self) -> tuple[int, str]:
        """Return the peak in bytes and a description of what it counts."""
        if self.device.startswith("cuda"):
            return torch.cuda.max_memory_allocated(self.device), "device, allocated"
        if self.reset:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10, "process, resident, during the requests"
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most * (1 if sys.platform == "darwin" else 1024), "process, resident, since its start"
