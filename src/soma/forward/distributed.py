"""Distributed perturbations (DDPP): workers share one model and divide its directions (docs/paper.md section 4).

Every worker holds the models and draws every batch; only the evaluation of the directions is divided. Workers exchange
only the losses, a few numbers per direction, and each regenerates all probes from their counters: unlike with the
paper's exchange of dense gradients, the result has the same bytes for any number of workers. (EGGROLL's workers divide
its pairs and also exchange the sum of their perturbations, which is exact.)

`torchrun` starts the workers, on one node or, in a job of Slurm, on several.

Shapes: E experts, J directions, S signs.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

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


def nodes() -> int:
    """Return on how many nodes they run."""
    return workers() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@dataclass(frozen=True)
class Layout:
    """Where the workers of a job run."""

    workers: int = 1
    nodes: int = 1
    """Nodes, which have equally many workers."""
    threads: int = 1
    """Threads of a worker."""
    wait: int = 1800
    """Seconds that a worker waits for the others."""


def launch(at: Layout) -> None:
    """Replace this process by `torchrun`, which starts the same command in the workers of a layout.

    With several nodes it is replaced by `srun`, which starts `torchrun` on each.

    Raises:
        SomaError: if several nodes are wanted outside a job of Slurm.
    """
    if at.workers == 1 or "WORLD_SIZE" in os.environ:
        return
    # torchrun would kill workers 30 s after it was told to stop, in the middle of an update.
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(at.wait)
    words = [*_srun(at), *torchrun(at, os.environ), "-m", "--", "soma.cli", *sys.argv[1:]]
    os.execvp(words[0], words)


def torchrun(at: Layout, environment: Mapping[str, str]) -> list[str]:
    """Return the command that starts the workers of one node, before their module.

    With several nodes, it runs on each. They meet at the first one, where this process runs, at a port from the number
    of the job, so that jobs on one node do not meet. After `--` torchrun takes no option as its own, not even one that
    looks like an abbreviation (`--log`).
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(at.workers // at.nodes)]
    if at.nodes == 1:
        return [*command, "--standalone"]
    job = environment["SLURM_JOB_ID"]
    place = f"{socket.gethostname()}:{_PORTS.start + int(job) % len(_PORTS)}"
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", place, "--rdzv-id", job]
    return [*command, "--nnodes", str(at.nodes), *meeting]


def _srun(at: Layout) -> list[str]:
    """Return the command that starts another once on each node of this job; empty for one node."""
    if at.nodes == 1:
        return []
    if "SLURM_JOB_ID" not in os.environ or shutil.which("srun") is None:
        raise SomaError(
            f"this job has {at.workers} workers on {at.nodes} nodes, which only Slurm can start; submit it with "
            "--workflow-profile profiles/slurm, or set compute.ddpp to at most compute.node_workers."
        )
    size = [f"--nodes={at.nodes}", f"--ntasks={at.nodes}", "--ntasks-per-node=1"]
    cores = f"--cpus-per-task={at.threads * at.workers // at.nodes}"
    # The step may use what the job has, although the job's own step has it; and none survives the loss of a node.
    return ["srun", "--overlap", "--kill-on-bad-exit=1", *size, cores]


_PORTS = range(20000, 32000)
"""Below the ports that Linux gives to clients."""


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
def group(device: torch.device, wait: int) -> Iterator[None]:
    """Join the workers of this job for the block; each waits at most `wait` seconds for the others."""
    if workers() == 1:
        yield
        return
    _die_with_parent()
    with _exchanging():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=wait))
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


def share(n: int, worker: int, of: int) -> range:
    """Return a worker's contiguous range of n things; any remainder goes to the first workers."""
    size, more = divmod(n, of)
    start = worker * size + min(worker, more)
    return range(start, start + size + (worker < more))


def gathered(own: Tensor, shares: Sequence[int]) -> Tensor:
    """Return the rows of all workers, in their order, of which worker r has `shares[r]`, on the CPU."""
    if workers() == 1:
        return own
    # Every worker sends as many rows as the one with the most.
    padded = own.new_zeros(max(shares), *own.shape[1:])
    padded[: len(own)] = own
    padded = padded.to(_collective_device())
    everyones = [torch.empty_like(padded) for _ in shares]
    with _exchanging():
        dist.all_gather(everyones, padded)
    return torch.cat([rows[:n] for rows, n in zip(everyones, shares, strict=True)]).cpu()


def added(own: Tensor) -> Tensor:
    """Return the sum of a tensor over the workers; its sums must be exact, since their order is not fixed."""
    if workers() > 1:
        there = own.to(_collective_device())
        with _exchanging():
            dist.all_reduce(there)
        own.copy_(there)
    return own


def send_to_leader(tensor: Tensor, worker: int) -> None:
    """Copy a tensor of a worker into that of the leader, in place; the other workers do nothing."""
    if rank() not in (0, worker) or not tensor.numel():
        return
    there = tensor.to(_collective_device())
    with _exchanging():
        if rank() == worker:
            dist.send(there, 0)
        else:
            dist.recv(there, worker)
            tensor.copy_(there)


class DistributedEngine(Engine):
    """An engine that divides its directions among the workers."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.exact = engine, engine.name, engine.exact

    def _losses(self, at: Problem) -> NDArray[np.float64]:
        probes, signs = at.probes, at.signs
        shares = [share(len(probes.directions), worker, workers()) for worker in range(workers())]
        own = shares[rank()]
        mine = np.empty((len(probes.experts), 0, len(signs)))
        if own:
            part = probes.part(slice(None), slice(own.start, own.stop))
            mine = self.engine.losses(at.experts, at.tokens, part, at.eps, signs)
        rows = torch.from_numpy(np.ascontiguousarray(mine.swapaxes(0, 1)))
        return gathered(rows, [len(own) for own in shares]).numpy().swapaxes(0, 1)

    def combine(self, probes: Probes, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.engine.combine(probes, coefficients)

    def token_losses(self, experts: Experts, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
        return self.engine.token_losses(experts, tokens)

    def hidden(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        return self.engine.hidden(experts, tokens)

    def head_gradient(self, experts: Experts, tokens: NDArray[np.uint8]) -> Tensor:
        return self.engine.head_gradient(experts, tokens)


def _collective_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
