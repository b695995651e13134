"""Steps as forks of one process that has their libraries in memory, so that jobs on one machine start at once.

Snakemake starts a server and names its socket in the environment (`start`). Every step that finds it there is a client
(`run`): the server imports the module of the step, unless an earlier job has used it, and forks; the fork gets the
arguments, environment and standard streams of the client, which waits for it and ends as it ends. To Snakemake, the
client is the job. SIGTERM is passed on to the fork, a client that is killed takes its fork with it, and when Snakemake
is gone, however it ended, the forks get SIGTERM.

Only Linux has what this needs. Elsewhere, and wherever there is no server, steps run by themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

VARIABLE = "SOMA_FORKS"
"""Variable of the environment that holds the path of the server's socket."""
_LONGEST = 1 << 20
"""Bytes of a request: arguments and environment."""
_OWNER = 0
"""The standard input of the server and its forks' keepers, which closes when the process that started it ends."""
_ALONE = b"alone"
_servers: list[subprocess.Popen[str]] = []  # the one of this process: without a name, Python would end it


def start() -> None:
    """Start a server, if this system can, and name it in the environment of this process's later children."""
    if not hasattr(os, "pidfd_open"):
        return
    command = [sys.executable, "-c", "from soma.cli.forks import serve; serve()"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _servers.append(server)
    assert server.stdout is not None
    if path := server.stdout.readline().strip():
        os.environ[VARIABLE] = path


def run(module: str, words: Sequence[str]) -> int | None:
    """Let a fork of the server run a step.

    Args:
        module: module of the step, which the server imports.
        words: arguments of `soma`.

    Returns:
        The exit status as a shell gives it, or None if the step should run in this process: there is no server, or its
        libraries are set to another number of threads.
    """
    path = os.environ.pop(VARIABLE, None)
    if path is None:
        return None
    request = json.dumps({"module": module, "words": list(words), "environment": dict(os.environ)}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(path)
            socket.send_fds(server, [request], [0, 1, 2])
        except OSError:  # the server is gone, or the request is too long for it
            return None
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the fork as well
        signal.signal(signal.SIGTERM, lambda number, _: server.send(bytes([number])))
        answer = server.recv(16)
    if answer == _ALONE:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return None
    return int(answer or 1)


def serve() -> None:
    """Fork for every client until the process that started this one has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a keeper ended
    # Python 3.12 warns of forks beside threads; those of the libraries wait for work, which only forks give them.
    warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
    threads = None
    with tempfile.TemporaryDirectory(prefix="soma-") as folder, _listener(f"{folder}/socket") as listener:
        print(f"{folder}/socket", flush=True)
        while _OWNER not in select.select([_OWNER, listener.fileno()], [], [])[0]:
            with listener.accept()[0] as client:
                request, streams, _, _ = socket.recv_fds(client, _LONGEST, 3)
                asked = json.loads(request)
                wanted = {name: n for name, n in asked["environment"].items() if name.endswith("_NUM_THREADS")}
                if threads is None:
                    threads = wanted
                    os.environ |= threads  # libraries read it when they are imported
                if wanted == threads:
                    with contextlib.suppress(Exception):  # the fork will meet it too, and say so
                        importlib.import_module(asked["module"])
                    if os.fork() == 0:
                        listener.close()
                        _keep(client, asked, streams)
                else:
                    client.send(_ALONE)
                for stream in streams:
                    os.close(stream)


def _listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(128)
    return listener


def _keep(client: socket.socket, asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """Fork once more, pass signals to the fork, and tell the client how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        client.close()
        _become(asked, streams)
    ended = os.pidfd_open(pid)
    sources = [ended, client.fileno(), _OWNER]
    while ended not in (ready := select.select(sources, [], [])[0]):
        for source in ready:
            number = client.recv(1)[:1] if source == client.fileno() else b""
            if not number:
                sources.remove(source)
            os.kill(pid, number[0] if number else signal.SIGTERM if source == _OWNER else signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):  # the client has been killed
        client.send(str(status if status >= 0 else 128 - status).encode())
    os._exit(0)


def _become(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """Turn this process into the command that a client asked for."""
    status = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        # Python's own streams would go on as those of the server, which may be a file where these are a pipe.
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 (until the process ends)
            for number, mode, errors in ((0, "r", "surrogateescape"), (1, "w", "strict"), (2, "w", "backslashreplace"))
        )
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ |= asked["environment"]
        sys.argv = ["soma", *asked["words"]]
        status = importlib.import_module("soma.cli").main(asked["words"])
        sys.stdout.flush()
    finally:
        os._exit(status)
