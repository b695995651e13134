"""A Slurm cluster on the loopback interface, with its own daemons, ports, keys and folders: one node, or several."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
SEARCH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
MISSING = [name for name in (*DAEMONS, "sbatch", "srun", "squeue", "scancel") if not shutil.which(name, path=SEARCH)]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
# Nothing that needs a database, cgroups or another package.
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# More than the machine has: jobs wait for each other's processors, not for their turn.
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=2
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=128000 Gres=gpu:4\n"
DEVICES = ("null", "zero", "full", "random")
"""Files that exist on every machine, used in place of GPUs."""


class Slurm:
    """A cluster between `start` and `stop`; its commands need the variables in `environment`."""

    def __init__(self, folder: Path, nodes: Sequence[str] = (), more: str = "") -> None:
        """Name the nodes (default: one, with the name of this machine), and give more lines of the configuration."""
        self.folder, self._nodes, self._more = folder, nodes, more
        self.environment = {"PATH": f"{folder}/bin{os.pathsep}{SEARCH}", "SLURM_CONF": f"{folder}/slurm.conf"}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        host = socket.gethostname().split(".")[0]
        nodes = self._nodes or [host]
        for name in ("state", "bin", *(f"spool-{node}" for node in nodes)):
            (self.folder / name).mkdir()
        port, *ports = _free_ports(1 + len(nodes))
        lines = [NODE.format(name=node, host=host, port=own) for node, own in zip(nodes, ports, strict=True)]
        values = {"host": host, "user": getpass.getuser(), "port": port, "nodes": "".join(lines)}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self.folder, **values) + self._more)
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File=/dev/{name}\n" for name in DEVICES))
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        # The plugin clears the environment, so the jobs' commands read the configuration from its default location.
        for name in ("srun", "scontrol"):
            wrapper = self.folder / "bin" / name
            command = shutil.which(name, path=SEARCH)
            wrapper.write_text(f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {command} "$@"\n')
            wrapper.chmod(0o755)
        own = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        # Forced, because pytest's folders are closed to other users.
        self._spawn("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *own)
        self.wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._spawn("slurmctld", "-D")
        for node in nodes:
            self._spawn("slurmd", "-D", "-N", node, out=f"slurmd-{node}")
        idle = ("sinfo", "--noheader", "--Node", "--partition=all", "--states=idle")
        self.wait_for(lambda: len(self.run(*idle).splitlines()) == len(nodes), "the nodes")

    def stop(self) -> None:
        self.run("scancel", "--full", "--signal=KILL", "--user", getpass.getuser())
        self.run("scancel", "--user", getpass.getuser())
        try:
            self.wait_for(lambda: not self.run("squeue", "--noheader").strip(), "the last job")
        finally:
            for daemon in reversed(self._daemons):
                daemon.terminate()
                daemon.wait(timeout=30)
            self._kill_orphans()

    def run(self, *words: str) -> str:
        """Return the output of a Slurm command."""
        command = [shutil.which(words[0], path=SEARCH) or words[0], *words[1:]]
        done = subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout + done.stderr

    def job(self, comment: str) -> str:
        """Return the running job with this comment, which the plugin sets."""
        lines = self.run("squeue", "--noheader", "--states=running", "--format=%i %k").splitlines()
        (job,) = [line.split()[0] for line in lines if line.split()[1] == comment]
        return job

    def start_now(self, job: str) -> None:
        """Start a requeued job, which would otherwise wait two minutes, and return when it has started.

        A job that starts before Slurm has ended the steps of its last start waits for ever for its own. Slurm sets the
        time once more after it has cleaned up, so asking once may come too early.
        """
        steps = f"slurmstepd: [{job}.".encode()

        def state() -> str:
            return self.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()

        def has_started() -> bool:
            if state() == "PENDING":
                self.run("scontrol", "update", f"JobId={job}", "StartTime=now")
            return state() in ("RUNNING", "COMPLETING", "COMPLETED")

        self.wait_for(lambda: state() == "PENDING", "the queue")
        self.wait_for(lambda: not any(_processes_with("cmdline", steps)), f"the last steps of job {job} to end")
        self.wait_for(has_started, f"job {job} to start", 120)

    def wait_for(self, condition: Callable[[], object], what: str, seconds: int = 60) -> None:
        for _ in range(10 * seconds):
            if condition():
                return
            time.sleep(0.1)
        said = "\n".join(p.read_text()[-2000:] for p in sorted(self.folder.glob("*.out")))
        raise AssertionError(f"waited too long for {what}:\n{said}")

    def _kill_orphans(self) -> None:
        """Kill processes that Slurm no longer tracks: Snakemake can hang if SIGTERM arrives during a job's error."""
        for process in _processes_with("environ", f"PATH={self.folder}/bin:".encode()):
            with suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)

    def _spawn(self, name: str, *options: str, out: str = "") -> None:
        with (self.folder / f"{out or name}.out").open("wb") as file:
            command = [shutil.which(name, path=SEARCH) or name, *options]
            environment = os.environ | self.environment
            self._daemons.append(subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT))


def _processes_with(file: str, text: bytes) -> Iterator[Path]:
    """Yield the folders of processes whose `environ` or `cmdline` contains a text."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if text in (process / file).read_bytes():
                yield process


def _free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
