"""benchmarks/data.py: its text is as asked, and its commands are those of the workflow."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.project import ROOT

from soma.cli import steps
from soma.config.data import FineWebSource
from soma.data.sources import parts


@pytest.fixture
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("data_benchmark", ROOT / "benchmarks/data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_text_has_the_size_and_no_document_twice(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "ROWS", 10)
    monkeypatch.setattr(benchmark, "FILE", 100_000)
    (tmp_path / "given.txt").write_text("Some words – repeated. " * 500)
    files = benchmark.write_text(tmp_path / "text", tmp_path / "given.txt", 250_000)
    source = FineWebSource(source="fineweb-edu", path=str(tmp_path / "text"), files=(0, files))
    documents = [document for part in parts(source) for document in part.read()]
    assert files > 1
    assert 250_000 <= sum(len(document.text) for document in documents) < 350_000
    assert len({document.text for document in documents}) == len(documents)


@pytest.mark.parametrize("parts", [1, 3])
def test_every_command_is_one_of_the_workflow(benchmark: Any, tmp_path: Path, parts: int) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    steps.add_commands(parser.add_subparsers())
    options = argparse.Namespace(parts=parts, experts=4, workers=2)
    commands = list(benchmark.commands(tmp_path, options))
    for step, settings, *words in commands:
        read = parser.parse_args([step, *map(str, words), *(["--settings", settings] if settings else [])])
        assert read.log is None
    assert [step for step, *_ in commands].count("encode") == parts + 1
    assert [step for step, *_ in commands].count("assign") == parts
    assert ("join" in [step for step, *_ in commands]) == (parts > 1)
