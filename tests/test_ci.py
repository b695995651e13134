"""What continuous integration needs of the tests themselves: no test is skipped unseen."""

import os
import subprocess
import sys

import pytest

from tests.project import ROOT

SKIPPED = """
import pytest

@pytest.mark.skipif(True, reason="no qemu-aarch64 on this machine")
def test_with_a_tool():
    raise AssertionError

def test_with_another():
    pytest.skip("clang++ is not installed")

def test_with_none():
    pass
"""


@pytest.mark.parametrize(
    ("needed", "counts"),
    [
        ("", "1 passed, 2 skipped"),
        ("sshd", "1 passed, 2 skipped"),
        ("sshd qemu-aarch64", "1 passed, 1 skipped, 1 error"),
    ],
)
def test_a_skip_for_want_of_a_needed_tool_fails_and_all_skips_are_printed_last(tmp_path, needed, counts):
    (tmp_path / "test_some.py").write_text(SKIPPED)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml")]
    environment = os.environ | {"SOMA_TESTS_NEED": needed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[-1].startswith(counts), done.stdout
    assert any(line.startswith("SKIPPED [1]") and "clang++ is not installed" in line for line in lines[-4:])
    assert done.returncode == ("error" in counts)
