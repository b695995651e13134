"""Remotes other than a folder, with DVC's own clients and servers on this machine."""

from pathlib import Path

import pytest

from tests.dvc.repository import RESULTS, Repository
from tests.dvc.servers import SSHD, s3_server, ssh_server

pytestmark = pytest.mark.dvc


def push_and_pull(copy: Repository, folder: Path, **remote: str) -> None:
    """Push everything to another remote, and pull it from there into a clone."""
    settings = {"core": {"remote": "elsewhere"}, "_elsewhere": remote}
    copy.configure(**settings)
    assert "files pushed" in copy.dvc("push")
    clone = copy.clone(folder / "clone")
    clone.configure(**settings)
    clone.run("rm", "-r", "store")
    clone.dvc("pull")
    assert "up to date" in clone.dvc("status")
    losses = RESULTS / "measurements/losses.parquet"
    assert (clone.folder / losses).read_bytes() == (copy.folder / losses).read_bytes()
    assert clone.damaged() == []


@pytest.mark.skipif(SSHD is None, reason="no sshd on this machine (Debian: apt-get install openssh-server)")
def test_an_ssh_server(copy, tmp_path):
    keys = tmp_path / "ssh"
    keys.mkdir()
    with ssh_server(keys) as (address, key):
        push_and_pull(copy, tmp_path, url=f"{address}{tmp_path}/there", keyfile=str(key))
    assert any((tmp_path / "there/files/md5").iterdir())


def test_an_s3_bucket(copy, tmp_path):
    with s3_server(tmp_path, "weights") as address:
        keys = {"access_key_id": "k", "secret_access_key": "s", "region": "us-east-1"}
        push_and_pull(copy, tmp_path, url="s3://weights/soma", endpointurl=address, **keys)
