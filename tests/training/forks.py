"""Commands in forks of the process that tests, which has imported their libraries: a new process would take seconds."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta

import torch.distributed as dist

from soma.cli import main


def start(words: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Start `soma WORDS` with more variables in its environment, and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.alarm(300)  # whatever happens, nobody waits for ever
        logging.getLogger().handlers.clear()  # pytest's
        os.environ |= environment or {}
        sys.argv = ["soma", *words]
        os._exit(main(words))
    finally:
        os._exit(99)


def status(pid: int) -> int:
    """Wait for a fork and return its exit status; -9 of one that was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Workers:
    """Workers of one command, which meet in a store of this process as under torchrun."""

    def __init__(self, words: Sequence[str], count: int) -> None:
        wait = timedelta(seconds=120)
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait)
        size = {name: str(count) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")} if count > 1 else {}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store.port)}
        common = size | place | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        self.pids = [start(words, common | {"RANK": str(r), "LOCAL_RANK": str(r)}) for r in range(count)]

    def statuses(self) -> list[int]:
        return [status(pid) for pid in self.pids]
