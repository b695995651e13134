"""Every subcommand ends with one sentence, never with a traceback, whatever it is given."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from soma import cli
from tests.project import ROOT

_SUBPARSERS = next(a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
COMMANDS = {name: [a for a in p._actions if a.dest != "help"] for name, p in _SUBPARSERS.choices.items()}

NUMBERS = ["nan", "inf", "-inf", "-1", "0", "1e-320", "1e400", "", "x", "3.5", "0x1p3", "1_0", "٣", "1" + 31 * "0"]
WORDS = ["", "x", "../x", "a/b", "/etc/passwd", "\x1b[31m", "a b", "a\nb", "é", "\udcff", "x" * 300, "null", "0", "%s"]
FILES = {
    "empty": b"", "latin": b"\xff\xfe\x00", "list.json": b"[]", "dict.json": b"{}", "half.json": b'{"a": ',
    "deep.json": b"[" * 100_000, "deeper.json": b"[" * 100_000 + b"]" * 100_000, "digits.json": b"9" * 5000,
    "null.json": b"null", "nan.json": b"NaN", "number.json": b"3", "settings.json": b'{"window": "x", "seed": null}',
    "entries.json": b'[{"run": 3}]', "text.txt": b"hello world\n" * 3, "cut.parquet": b"PAR1xxxxPAR1",
    "cut.npy": b"\x93NUMPY\x01\x00v\x00", "key.yaml": b"{[a]: b}", "date.yaml": b"a: 2024-13-45",
    "arms.yaml": b"arms: 3",
}  # fmt: skip
IN_CAMPAIGN = ("manifest.json", "ensemble.json", "sets/validation.json", "runs/x/000-000/run.json")
PATHS = [
    *FILES,
    "none",
    "campaign",
    ".",
    "empty/below",
    "loop",
    "/dev/null",
    "x" * 300,
    "a\nb",
    "",
    "ünï",
    "\udcff",
    "-",
]

AT_MOST = 60
"""Values tried for a command, evenly spread."""
FINE = {
    ("plan", "configfile"), ("status", "configfile"), ("adopt", "configfile"), ("adopt", "reason"), ("adopt", "leave"),
    ("adopt", "threads"),
}  # fmt: skip
"""Commands that may succeed here: an overlay may be `{}`, and without a campaign there is nothing to adopt."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project without a campaign, with files that nothing should accept."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "loop").symlink_to("loop")
    for name in IN_CAMPAIGN:
        (tmp_path / "campaign" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "campaign" / name).write_text("{}")
    (tmp_path / "logs").mkdir()
    monkeypatch.chdir(tmp_path)
    kept = logging.getLogger().handlers[:]
    yield tmp_path
    logging.getLogger().handlers[:] = kept


def values(action: argparse.Action) -> list[str]:
    if action.dest == "log":
        return ["", ".", "empty/below", "loop", "x" * 300, "logs/\udcff", "logs/a\nb"]
    if action.type is Path:
        return PATHS
    if action.type in (int, float):
        return [number for number in NUMBERS if action.type is int or number not in ("3.5", "1_0", "٣")]
    return ["x", ""] if action.choices else [*WORDS, *PATHS]


def usual(action: argparse.Action, path: str) -> str:
    """Return a value of the right type, which leads as far as the next thing that is wrong."""
    if action.type in (int, float):
        return "1"
    if action.choices:
        return str(next(iter(action.choices)))
    return path if action.type is Path else "x"


def arguments(command: str, chosen: argparse.Action | None, value: str, path: str) -> list[str]:
    words = [command]
    for action in COMMANDS[command]:
        if action.nargs == 0 or (action is not chosen and action.option_strings and not action.required):
            continue
        given = value if action is chosen else usual(action, path)
        words += [f"{action.option_strings[0]}={given}"] if action.option_strings else [given]
    return words


def check(words: list[str], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> int:
    """Run a command; if it does not succeed, it must have said why in one sentence."""
    caplog.clear()
    try:
        status = cli.main(words)
    except SystemExit as stop:  # argparse
        status = int(str(stop.code))
        assert status == 2
        assert capsys.readouterr().err.count("error: ") == 1, words
        return status
    assert status in (0, 1), (words, caplog.text)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == status, (words, caplog.text)
    assert not any(record.exc_info for record in errors), (words, caplog.text)
    assert "Traceback" not in capsys.readouterr().err
    return status


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_values_end_in_one_sentence(
    command: str, place: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    if command == "snapshot":  # it takes no value; this place has no dvc.yaml
        assert check([command], capsys, caplog) == 1
        return
    pairs = [(action, value) for action in COMMANDS[command] if action.nargs != 0 for value in values(action)]
    step = max(1, len(pairs) // AT_MOST)
    chosen = pairs[len(command) % step :: step]
    assert len(chosen) >= 20
    for (action, value), path in zip(chosen, cycle(("none", "dict.json", "list.json", "settings.json", "."))):
        status = check(arguments(command, action, value, path), capsys, caplog)
        assert status or (command, action.dest) in FINE, (command, action.dest, value)
        for name, content in FILES.items():
            assert (place / name).read_bytes() == content, (command, action.dest, value)


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"files": 3}', '{"files": {"f": {"bytes": "x"}}}', '{"run": {}}', "{"]
)
def test_a_campaign_of_damaged_records(
    content: str, place: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in IN_CAMPAIGN:
        (place / "campaign" / name).write_text(content)
    for words in (
        ["verify", "campaign"], ["replay", "campaign"], ["replay", "campaign", "x"],
        ["export", "--campaign=campaign", "--run=x", "--output=model"], ["score", "--model=campaign", "text.txt"],
    ):  # fmt: skip
        assert check(words, capsys, caplog) == 1, words
    cost = place / "results/toy/runs/seed-d16-s0/000-000/cost.json"
    cost.parent.mkdir(parents=True)
    cost.write_text(content)
    assert check(["status", "--configfile", "config/toy.yaml"], capsys, caplog) == 1


def test_the_end_of_standard_output(tmp_path: Path) -> None:
    """A full disk behind standard output, none at all, and an encoding without the characters of an answer."""
    command = [sys.executable, "-m", "soma.cli", "plan", "--configfile", "config/toy.yaml"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    shell = f"{sys.executable} -m soma.cli plan --configfile config/toy.yaml 2> /dev/null >&-"
    assert subprocess.run(["sh", "-c", shell], cwd=ROOT, env=environment).returncode == 0


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["re"], {"regenerate", "replay"}),
        (["regenerate", "--w"], {"--workers"}),
        (["models", "config/t"], {"config/toy.yaml"}),
        (["export", "--iterate", "a"], {"average"}),
    ],
)
def test_a_shell_completes_subcommands_options_files_and_choices(typed: list[str], offered: set[str]) -> None:
    script = """
        source <(SOMA --print-completion bash)
        complete -p soma > /dev/null || exit 1
        COMP_WORDS=(soma "$@"); COMP_CWORD=$#; COMP_LINE="soma $*"; COMP_POINT=${#COMP_LINE}
        name=$(complete -p soma | sed "s/.*-F \\([^ ]*\\).*/\\1/")
        "$name" soma "${!#}" "${COMP_WORDS[COMP_CWORD-1]}" 2> /dev/null
        printf "%s\\n" "${COMPREPLY[@]}"
    """
    words = ["bash", "-c", script.replace("SOMA", f"{sys.executable} -m soma.cli"), "bash", *typed]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize(("shell", "registers"), [("zsh", "#compdef soma"), ("tcsh", "complete soma")])
def test_other_shells_have_scripts_too(shell: str, registers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--print-completion", shell])
    assert not stop.value.code
    said = capsys.readouterr().out
    assert registers in said
    assert "regenerate" in said
