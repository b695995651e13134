"""Distributed perturbations (DDPP): workers share one model and divide its directions (docs/paper.md section 4).

Every worker holds the model and draws every batch; only the evaluation of the directions is divided. Workers exchange
only the losses, a few numbers per direction, and each regenerates all probes from their counters: unlike with the
paper's exchange of dense gradients, the result has the same bytes for any number of workers.

Shapes: E experts, J directions, S signs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from soma.errors import SomaError
from soma.forward.engine import Engine, Problem
from soma.forward.probes import Probes
from soma.models.experts import Experts


def workers() -> int:
    """Return how many processes `torchrun` started for this job; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launch(wanted: int) -> None:
    """Replace this process by `torchrun`, which starts the same command in `wanted` workers."""
    if wanted > 1 and "WORLD_SIZE" not in os.environ:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(wanted)]
        # After `--` torchrun takes no option as its own, not even one that looks like an abbreviation (`--log`).
        os.execv(sys.executable, [sys.executable, *torchrun, "-m", "--", "soma.cli", *sys.argv[1:]])


def rank() -> int:
    """Return the rank of this process; rank 0 writes and reports."""
    return int(os.environ.get("RANK", "0"))


def own_device(name: str) -> torch.device:
    """Return the device of this worker: on CUDA, one each."""
    if name == "cuda" and workers() > 1:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        return device
    return torch.device(name)


def _die_with_parent() -> None:
    """Have the system kill this worker when `torchrun` dies: without it, a worker may wait for the others for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PR_SET_PDEATHSIG = 1


@contextmanager
def group(device: torch.device) -> Iterator[None]:
    """Join the workers of this job for the block."""
    if workers() == 1:
        yield
        return
    _die_with_parent()
    with _exchanging():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _exchanging() -> Iterator[None]:
    """Turn the loss of a worker into a `SomaError` in the others; other errors are unchanged."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        raise SomaError(
            f"worker {rank()} of {workers()} lost the others ({str(error).splitlines()[0]}); start the job again, with "
            "any number of workers, and it continues from its last saved state."
        ) from None


def barrier() -> None:
    """Wait until every worker arrives."""
    if dist.is_initialized():
        with _exchanging():
            dist.barrier()


def any_worker(flag: bool) -> bool:
    """Return True on all workers if the flag is set on any."""
    if not dist.is_initialized():
        return flag
    value = torch.tensor(float(flag), device=_collective_device())
    with _exchanging():
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return bool(value.item())


class DistributedEngine(Engine):
    """An engine that divides its directions among the workers."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.exact = engine, engine.name, engine.exact

    def _losses(self, at: Problem) -> NDArray[np.float64]:
        probes, signs = at.probes, at.signs
        own = _share(len(probes.directions), rank(), workers())
        mine = np.empty((len(probes.experts), 0, len(signs)))
        if own:
            part = probes.part(slice(None), slice(own.start, own.stop))
            mine = self.engine.losses(at.experts, at.tokens, part, at.eps, signs)
        most = len(_share(len(probes.directions), 0, workers()))
        padded = torch.zeros(mine.shape[0], most, len(signs), dtype=torch.float64)
        padded[:, : mine.shape[1]] = torch.from_numpy(mine)
        padded = padded.to(_collective_device())
        gathered = [torch.empty_like(padded) for _ in range(workers())]
        with _exchanging():
            dist.all_gather(gathered, padded)
        counts = [len(_share(len(probes.directions), r, workers())) for r in range(workers())]
        return torch.cat([x[:, :n] for x, n in zip(gathered, counts, strict=True)], dim=1).cpu().numpy()

    def combine(self, probes: Probes, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.engine.combine(probes, coefficients)

    def token_losses(self, experts: Experts, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        return self.engine.token_losses(experts, tokens)

    def hidden(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        return self.engine.hidden(experts, tokens)

    def head_gradient(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        return self.engine.head_gradient(experts, tokens)


def _share(n: int, worker: int, of: int) -> range:
    """Return a worker's contiguous range of directions; any remainder goes to the first workers."""
    size, more = divmod(n, of)
    start = worker * size + min(worker, more)
    return range(start, start + size + (worker < more))


def _collective_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
