"""Servers on this machine for DVC's clients: an SSH server and an S3-compatible store."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


@contextmanager
def ssh_server(folder: Path) -> Iterator[tuple[str, Path]]:
    """Run an sshd as this user with one throw-away key, and yield its address and the private key."""
    assert SSHD is not None
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = _free_port()
    lines = [
        f"ListenAddress {HOST}:{port}",
        f"HostKey {folder}/host",
        f"AuthorizedKeysFile {folder}/authorized",
        "PasswordAuthentication no",
        "UsePAM no",
        "StrictModes no",  # pytest's folders may be open to a group
        "PidFile none",
        "Subsystem sftp internal-sftp",
    ]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd needs this folder for privilege separation if started as root
    with _running([SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], port, folder / "sshd.log"):
        yield f"ssh://{getpass.getuser()}@{HOST}:{port}", folder / "user"


@contextmanager
def s3_server(folder: Path, bucket: str) -> Iterator[str]:
    """Run moto's S3 in its own process with an empty bucket, and yield its address."""
    import boto3

    port = _free_port()
    address = f"http://{HOST}:{port}"
    with _running([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)], port, folder / "moto.log"):
        client = boto3.client(
            "s3", endpoint_url=address, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
        )
        client.create_bucket(Bucket=bucket)
        client.close()
        yield address


def _free_port() -> int:
    with socket.socket() as s:
        s.bind((HOST, 0))
        port: int = s.getsockname()[1]
        return port


@contextmanager
def _running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Run a process that listens on a port, and end it by its id."""
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        for _ in range(300):
            assert process.poll() is None, f"{command[0]} ended: {log.read_text()}"
            try:
                socket.create_connection((HOST, port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise AssertionError(f"{command[0]} does not listen: {log.read_text()}")
        yield
    finally:
        process.terminate()
        process.wait(30)
