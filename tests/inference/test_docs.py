"""The example of docs/inference.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.examples import blocks, imported
from tiny_model import Tiny


def test_the_example_runs(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = [block for block in blocks("inference.md", "python") if "lm_eval" not in block]  # that is test_harness's
    assert code
    (tmp_path / "models").mkdir()
    (tmp_path / "models/soma-n8").symlink_to(tiny.folder)
    (tmp_path / "speech.txt").write_bytes(tiny.texts[0])
    monkeypatch.chdir(tmp_path)
    imported("".join(code), tmp_path / "example.py")
    assert capsys.readouterr().out


def test_the_commands_are_those_of_the_parser(root: Path) -> None:
    from soma.cli import _parser

    text = (root / "docs/inference.md").read_text()
    for line in re.findall(r"^soma (.*)$", text, re.MULTILINE):
        _parser().parse_args([word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line.split(" # ")[0])])
