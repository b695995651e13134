"""Resume states: two generations, none lost to another run or engine, and one writer at a time."""

import logging
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from soma.errors import SomaError
from soma.training.checkpoint import load_tensors, save_tensors
from soma.training.history import HISTORY_COLUMNS, History
from soma.training.names import DAMAGED, STATE
from tests.training.small_runs import digest, spec, states, trained, trainer


@pytest.fixture
def saved(tmp_path):
    """A folder with the states after updates 4 and 8."""
    t = trainer(spec())
    for update in (4, 8):
        t.train(lambda: None, until=update)
        states(tmp_path).save(t)
    return tmp_path


def restored(folder, run="run", engine="torch"):
    """The update that a new trainer continues after, None if it starts over, and the trainer."""
    t = trainer(spec())
    return (t.progress.update if states(folder, run, engine).restore(t) else None), t


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "of an older version"])
def test_the_state_before_the_last_serves_where_the_last_does_not(saved, damage, caplog):
    path = saved / STATE
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[:-3])
    elif damage == "flipped":
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        tensors, facts = load_tensors(path)
        save_tensors(path, tensors, {key: value for key, value in facts.items() if key != "format"})
    update, t = restored(saved)
    assert update == 4
    assert (saved / DAMAGED).exists() == (damage != "missing")
    assert not path.exists()
    t.train(lambda: None)
    assert digest(t.progress) == digest(trained(spec()))


def test_states_of_other_settings_are_kept_and_found_again(saved, caplog):
    assert restored(saved, "changed")[0] is None
    assert [message.partition(", since")[0] for message in caplog.messages] == ["starting over"]
    other = trainer(spec())
    states(saved, "changed").save(other)
    assert restored(saved)[0] == 8  # the settings are back
    assert restored(saved, "changed")[0] == 0
    assert restored(saved)[0] == 8


def test_another_engine_stops_with_a_sentence_and_changes_nothing(saved):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(SomaError) as caught:
        restored(saved, engine="cpu")
    assert str(caught.value) == (
        f"{saved / STATE} was saved by the engine `torch`, and the engine here is `cpu`, which gives other bytes; set "
        "compute.engine to torch, or move it away and start over."
    )
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_a_history_of_ten_million_rows_is_saved_and_continued(tmp_path):
    """A run of 32 experts for 4 million updates has as many; they once lay in a header that ends at 100 MB."""
    rows, t = 10_000_000, trainer(spec())
    t.train(lambda: None, until=4)
    short = t.progress.history
    repeat = {name: rows // len(short) + 1 for name in short.tensors()}
    padded = {
        name: tensor.repeat(repeat[name], *[1] * (tensor.dim() - 1))[:rows] for name, tensor in short.tensors().items()
    }
    t.progress.history = History.from_tensors(padded)
    states(tmp_path).save(t)
    update, again = restored(tmp_path)
    assert update == 4
    assert len(again.progress.history) == rows
    again.train(lambda: None)
    history = again.progress.history
    assert len(history) == rows + len(trained(spec()).history) - len(short)
    assert history.column("update")[-1] == 12


def test_a_history_is_a_table_of_what_was_appended():
    chain = "0123456789abcdef" * 4
    history = History()
    for i in range(40):
        measured = {"alpha": i / 2} if i else {}
        history.append((i, 1, 2.5, 3.5, 0.1, 0.2), {"data": chain} if i % 2 else {}, measured)
    for each in (history, History.from_tensors(history.tensors())):
        table = each.table()
        assert table.column_names == [*HISTORY_COLUMNS, "alpha"]
        assert table["update"].to_pylist() == [*range(40)]
        assert str(table["update"].type) == "int64"
        assert table["data_sha256"].to_pylist() == ["", chain] * 20
        assert table["probes_sha256"].to_pylist() == [""] * 40
        assert np.isnan(table["alpha"][0].as_py())
        assert table["alpha"].to_pylist()[1:] == [i / 2 for i in range(1, 40)]
    assert History().table().num_rows == 0


_HOLD = """
import sys, time
from pathlib import Path
from soma.training.states import States
with States(Path(sys.argv[1]), {"engine": "torch"}).alone():
    print("in", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@contextmanager
def held(folder, seconds):
    words = [sys.executable, "-c", _HOLD, str(folder), str(seconds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process


def test_a_second_writer_waits_for_the_first(tmp_path, caplog):
    with held(tmp_path / "part", 1) as first, caplog.at_level(logging.WARNING), states(tmp_path / "part").alone():
        assert first.wait(timeout=60) == 0
    assert f"waiting for process {first.pid} on " in caplog.text


def test_a_writer_that_was_killed_keeps_nobody_out(tmp_path, caplog):
    with held(tmp_path / "part", 600) as first:
        os.kill(first.pid, signal.SIGKILL)
    with states(tmp_path / "part").alone():
        pass
    assert not caplog.messages
    assert (tmp_path / "part").is_dir()
    assert not list(tmp_path.glob(".*.owner"))
