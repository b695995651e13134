"""Two nodes on one machine: network namespaces with their own host names, joined by one cable that tests can unplug."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("one", "two")
_HOSTS = "127.0.0.1 localhost\n10.77.0.1 one\n10.77.0.2 two\n"
_SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
command = sys.argv[1:]
while command[0].startswith("--"):
    command.pop(0)
tasks = [subprocess.Popen([f"{{os.environ['NODES']}}/enter", node, *command]) for node in {NAMES}]
signal.signal(signal.SIGTERM, lambda *_: [task.terminate() for task in tasks])
while all(task.poll() is None for task in tasks):
    time.sleep(0.1)
if any(task.poll() for task in tasks):  # --kill-on-bad-exit
    time.sleep(2)
    [task.kill() for task in tasks if task.poll() is None]
sys.exit(max(abs(task.wait()) for task in tasks))
"""
"""Stands in for Slurm's: starts a command once on each node, and leaves none running if one fails."""


class Nodes:
    """The nodes between `start` and `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._spaces = folder, {name: f"soma-{os.getpid()}-{name}" for name in NAMES}

    def start(self) -> str:
        """Make the nodes; return why that is not possible here, or an empty string."""
        if shutil.which("ip") is None:
            return "not installed: ip (apt-get install iproute2)"
        if os.geteuid() != 0:
            return "network namespaces cannot be made without root"
        cable = [f"link add eth0 netns {self._spaces['one']} type veth peer name eth0 netns {self._spaces['two']}"]
        for number, space in enumerate(self._spaces.values(), 1):
            cable += [f"-n {space} address add 10.77.0.{number}/24 dev eth0"]
            cable += [f"-n {space} link set {device} up" for device in ("lo", "eth0")]
        for words in [*(f"netns add {space}" for space in self._spaces.values()), *cable]:
            done = self._ip(*words.split())
            if done.returncode:
                return f"network namespaces cannot be made here: {done.stderr.strip()}"
        (self.folder / "hosts").write_text(_HOSTS)
        own = f"mount --bind {self.folder}/hosts /etc/hosts; hostname"
        self._script("enter", f'#!/bin/sh\nexec ip netns exec soma-{os.getpid()}-$1 unshare --uts --mount sh -c '
                              f"'{own} $0; exec \"$@\"' \"$@\"\n")  # fmt: skip
        self._script("srun", _SRUN)
        return ""

    def stop(self) -> None:
        for space in self._spaces.values():
            for process in self._ip("netns", "pids", space).stdout.split():
                os.kill(int(process), 9)
            self._ip("netns", "delete", space)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a job that has both nodes."""
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"PATH": path, "NODES": str(self.folder), "SLURM_JOB_ID": "77"}

    def on(self, node: str, *command: str) -> list[str]:
        """Return a command that runs another on a node."""
        return [f"{self.folder}/enter", node, *command]

    def workers(self, node: str) -> list[int]:
        """Return the processes of a node that torchrun started as workers."""
        pids = map(int, self._ip("netns", "pids", self._spaces[node]).stdout.split())
        return [pid for pid in pids if b"\0RANK=" in Path(f"/proc/{pid}/environ").read_bytes()]

    def plug(self, state: str) -> None:
        """Unplug (`down`) or plug in (`up`) the cable of the second node."""
        assert self._ip("-n", self._spaces["two"], "link", "set", "eth0", state).returncode == 0

    def _script(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    @staticmethod
    def _ip(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
