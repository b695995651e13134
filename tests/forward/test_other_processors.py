"""The kernels' bytes on ARM, by emulation, against those of this machine.

`apt-get install g++-aarch64-linux-gnu qemu-user` has what this needs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.project import ROOT

SOURCES = ROOT / "src/soma/forward/csrc"
DRIVERS = {"bytes.cpp": 4, "members_bytes.cpp": 6}
"""Programs, and the number of their problems."""
ARM = ("aarch64-linux-gnu-g++", "qemu-aarch64")


def hashes(driver: str, compiler: str, output: Path, *run: str) -> list[str]:
    flags = json.loads((SOURCES / "flags.json").read_text())["all"]
    command = [compiler, *flags, "-static", f"-I{SOURCES}", str(Path(__file__).with_name(driver)), "-o", str(output)]
    subprocess.run(command, check=True)
    return subprocess.run([*run, str(output)], check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.skipif(any(shutil.which(tool) is None for tool in ARM), reason=f"{' or '.join(ARM)} is not installed")
def test_arm_gives_the_same_bytes(driver, tmp_path):
    here = hashes(driver, "g++", tmp_path / "here")
    assert len(here) == len(set(here)) == DRIVERS[driver]
    assert hashes(driver, ARM[0], tmp_path / "arm", ARM[1]) == here
