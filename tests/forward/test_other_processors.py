"""The kernels' bytes on ARM, by emulation, against those of an Intel processor, in processors.json.

`apt-get install g++-aarch64-linux-gnu qemu-user` has what this needs. After a change that is meant to change bytes,
`python -m tests.forward.test_other_processors` writes the file again, with g++ on this machine, whose own kernels are
held to tests/training/bytes.json.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from tests.compilers import SOURCES

HASHES = Path(__file__).with_name("processors.json")
DRIVERS = {"bytes.cpp": 4, "members_bytes.cpp": 6}
"""Programs, and the number of their problems."""
ARM = ("aarch64-linux-gnu-g++", "qemu-aarch64")


def hashes(driver: str, compiler: str, output: Path, *run: str) -> list[str]:
    flags = json.loads((SOURCES / "flags.json").read_text())["all"]
    command = [compiler, *flags, "-static", f"-I{SOURCES}", str(Path(__file__).with_name(driver)), "-o", str(output)]
    subprocess.run(command, check=True)
    return subprocess.run([*run, str(output)], check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.skipif(any(shutil.which(tool) is None for tool in ARM), reason=f"{' or '.join(ARM)} is not installed")
def test_arm_gives_the_same_bytes(driver, tmp_path):
    known = json.loads(HASHES.read_text())[driver]
    assert len(known) == len(set(known)) == DRIVERS[driver]
    assert hashes(driver, ARM[0], tmp_path / "arm", ARM[1]) == known


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = {driver: hashes(driver, "g++", Path(folder, "here")) for driver in DRIVERS}
    HASHES.write_text(json.dumps(found, indent=1) + "\n")
