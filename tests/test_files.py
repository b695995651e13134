import ast
import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from soma.errors import SomaError
from soma.files.arrays import check_array, new_array, open_array
from soma.files.atomic import atomic_directory, atomic_path, read_json, remove_directory, write_json
from soma.files.disk_errors import sentence
from soma.files.hashes import check_files, describe_files
from soma.files.tables import read_rows, read_table, write_rows
from soma.runs import recorded
from tests.project import ROOT


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "a.json"
    write_json(target, {"x": 1})

    def fail():
        with atomic_path(target) as path:
            path.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert read_json(target) == {"x": 1}
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_new_files_have_the_permissions_of_the_user(tmp_path, umask):
    code = (
        "from pathlib import Path; from soma.files import atomic; atomic.write_bytes(Path('folder/file'), b'x')\n"
        "with atomic.atomic_directory(Path('other'), ['file']) as folder: (folder / 'file').touch()"
    )
    command = [sys.executable, "-c", f"import os; os.umask({umask})\n{code}"]
    subprocess.run(command, cwd=tmp_path, check=True)
    for name, wanted in (("folder/file", 0o666), ("folder", 0o777), ("other", 0o777), ("other/file", 0o666)):
        assert (tmp_path / name).stat().st_mode & 0o777 == wanted & ~umask, name


def test_a_failed_directory_leaves_the_old_one(tmp_path):
    target = tmp_path / "d"
    with atomic_directory(target, ("f",)) as d:
        (d / "f").write_text("old")

    def fail():
        with atomic_directory(target, ("f",)) as d:
            (d / "f").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (target / "f").read_text() == "old"
    assert os.listdir(tmp_path) == ["d"]


def own(folder):
    """Make a folder of the files `a*` and `sub/b`, with what Snakemake and a kill leave in it."""
    with atomic_directory(folder, ("a*", "sub/b")) as d:
        (d / "sub").mkdir()
        for name in ("a1", "sub/b", ".snakemake_timestamp", ".a2.k3_x9qzz", "sub/.b.abcd1234"):
            (d / name).write_text("old")
    return folder


def replace_or_remove(folder, act):
    if act == "remove":
        remove_directory(folder, ("a*", "sub/b"))
    else:
        with atomic_directory(folder, ("a*", "sub/b")) as d:
            (d / "a3").write_text("new")


@pytest.mark.parametrize("act", ["replace", "remove"])
def test_a_folder_of_ones_own_is_replaced(tmp_path, act):
    folder = own(tmp_path / "own")
    replace_or_remove(folder, act)
    assert [p.name for p in tmp_path.rglob("*")] == (["own", "a3"] if act == "replace" else [])
    empty = tmp_path / "empty"
    empty.mkdir()
    replace_or_remove(empty, act)
    assert empty.exists() == (act == "replace")


def make_stranger(tmp_path, kind):
    """Return something that is not to be replaced, and the path by which it is named."""
    folder = own(tmp_path / "own")
    match kind:
        case "file" | "folder" | "hidden" | "below" | "near" | "link inside":
            name = {"file": "thesis.tex", "hidden": ".git", "below": "sub/c", "near": "sub/a1"}.get(kind, "x")
            if kind == "folder":
                (folder / name).mkdir()
            elif kind == "link inside":
                (folder / name).symlink_to(tmp_path)
            else:
                (folder / name).write_text("years of work")
        case "link":
            (tmp_path / "link").symlink_to(folder)
            return tmp_path / "link"
        case "dangling":
            (tmp_path / "link").symlink_to(tmp_path / "nothing")
            return tmp_path / "link"
        case "is a file":
            (tmp_path / "plain").write_text("years of work")
            return tmp_path / "plain"
        case "current" | "above":
            (folder / "sub").mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("act", ["replace", "remove"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("file", r"own holds `thesis\.tex`, which was not made by what would replace this folder; move it away"),
        ("folder", "holds `x`"),
        ("hidden", r"holds `\.git`"),
        ("below", "holds `sub/c`"),
        ("near", "holds `sub/a1`"),
        ("link inside", "holds `x`"),
        ("link", "is a link"),
        ("dangling", "is a link"),
        ("is a file", "is a file"),
        ("current", "is the current folder or contains it"),
        ("above", "is the current folder or contains it"),
    ],
)
def test_what_others_made_is_never_replaced(tmp_path, monkeypatch, act, kind, words):
    target = make_stranger(tmp_path, kind)
    if kind in ("current", "above"):
        monkeypatch.chdir(target / "sub" if kind == "above" else target)
        target = Path("..") if kind == "above" else Path(".")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SomaError, match=words):
        replace_or_remove(target, act)
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_else_removes_a_folder():
    calls = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("rmtree", "removedirs")
    }
    assert calls == {"src/soma/files/atomic.py"}


@pytest.mark.parametrize(("damage", "words"), [("gone", "missing"), ("short", "3 bytes"), ("flipped", "hash")])
def test_check_files_names_what_is_wrong(tmp_path, damage, words):
    path = tmp_path / "f"
    path.write_bytes(b"abcd")
    known = describe_files(tmp_path, ["f"])
    check_files(tmp_path, known)
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"abc" if damage == "short" else b"abce")
    with pytest.raises(SomaError, match=words):
        check_files(tmp_path, known)


@pytest.mark.parametrize("name", ["../f", "/etc/passwd", "a/../../f"])
def test_a_manifest_lists_only_what_is_inside_its_folder(tmp_path, name):
    with pytest.raises(SomaError, match="which is not inside it"):
        check_files(tmp_path, {name: {"bytes": 1, "sha256": "0"}})


@pytest.mark.parametrize("value", [float("nan"), {"x": [float("inf")]}])
def test_json_is_json(tmp_path, value):
    with pytest.raises(SomaError, match=r"a\.json cannot be written: a value is infinite or no number"):
        write_json(tmp_path / "a.json", value)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("text", [b'{"a": ', b"\xff", b"", b"[" * 200_000, b"9" * 5000], ids=lambda text: str(text[:6]))
def test_broken_json_is_one_sentence(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(SomaError, match=r"x\.json (is not readable JSON|nests too deeply)"):
        read_json(path)


@pytest.mark.parametrize("damage", [b"", b"PAR1", None])
def test_damaged_rows_are_one_sentence(tmp_path, damage):
    path = tmp_path / "x.parquet"
    with pytest.raises(SomaError, match=r"x\.parquet is missing"):
        read_rows(path)
    pd.DataFrame({"a": range(1000)}).to_parquet(path)
    assert len(read_rows(path)) == 1000
    content = path.read_bytes()
    path.write_bytes(content[:-7] + content[-6:] if damage is None else damage)
    with pytest.raises(SomaError, match=r"x\.parquet is not a readable parquet file"):
        read_rows(path)


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((3, 1), np.uint16), np.uint16(3)])
def test_another_array_is_one_sentence(tmp_path, array):
    path = tmp_path / "x.npy"
    with pytest.raises(SomaError, match=r"x\.npy is missing"):
        open_array(path, np.uint16, 1)
    np.save(path, np.zeros(3, np.uint16))
    assert open_array(path, np.uint16, 1).tolist() == [0, 0, 0]
    content = path.read_bytes()
    for cut in (0, 5, 60, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(SomaError, match=r"x\.npy is damaged"):
            open_array(path, np.uint16, 1)
    np.save(path, array)
    with pytest.raises(SomaError, match=r"x\.npy is not an array of uint16 with 1 dimension"):
        open_array(path, np.uint16, 1)


def test_an_array_is_an_npy_file_whose_values_have_a_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr("soma.files.arrays._BLOCK", 100)
    path, rows = tmp_path / "x.npy", np.arange(200, dtype=np.float32).reshape(50, 4)
    with new_array(path, np.float32, rows.shape) as write:
        for block in (rows[:1], rows[1:33], rows[33:]):
            write(block)
    for mode in (None, "r"):
        np.testing.assert_array_equal(np.load(path, mmap_mode=mode), rows)
    check_array(path)
    content = path.read_bytes()
    for bit in range(0, 8 * 800, 97):
        damaged = bytearray(content)
        damaged[-809 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(SomaError, match=r"x\.npy does not have the values that it was written with"):
            check_array(path)
    path.write_bytes(content[:-2])
    with pytest.raises(SomaError, match=r"x\.npy does not have the values"):
        check_array(path)
    np.save(path, rows)  # by another writer: there is nothing to tell by
    check_array(path)


@pytest.mark.parametrize("text", ["[]", "3", '{"run": {}}', '{"run": 3}', "{}", '{"ru', "null"])
def test_a_record_of_no_run_is_one_sentence(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(SomaError, match=r"run\.json (is not|does not hold)"):
        recorded(tmp_path)


def test_errors_of_the_disk_say_what_to_do(tmp_path):
    def said(number, name="f"):
        return sentence(OSError(number, os.strerror(number), name))

    assert said(errno.ENOSPC) == (
        "f cannot be written: the disk is full; free some space (files saved earlier are intact), then start it again."
    )
    assert said(errno.EACCES) == "f may not be opened: permission is denied; change its mode, or name another."
    assert said(errno.EISDIR) == "f cannot be used (Is a directory); mend it, or name another."
    assert said(errno.EIO, None) == "a file cannot be used (Input/output error); mend it, or name another."
    assert sentence(OSError("not of the system")) is None


def test_rows_say_when_a_bit_of_them_was_flipped(tmp_path):
    """Wherever it was: in the values, in their encoding, or in the names of the columns."""
    path = tmp_path / "rows.parquet"
    draws = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "run": ["soma-n2-s0", "soma-n2-s1", None] * 100,
            "update": np.arange(300),
            "seed": pd.array([0, None, 2] * 100, dtype="Int64"),
            "nats": np.where(draws.random(300) < 0.1, np.nan, draws.normal(size=300)),
            "interpolated": draws.random(300) < 0.5,
        }
    )
    write_rows(path, rows)
    whole, content, said = read_table(path), path.read_bytes(), 0
    assert whole.to_pandas()["nats"].equals(rows["nats"])
    for position in draws.integers(len(content), size=400):
        damaged = bytearray(content)
        damaged[position] ^= 1 << draws.integers(8)
        path.write_bytes(damaged)
        try:
            assert read_table(path).equals(whole)
        except SomaError:
            said += 1
    assert said > 200
    rows.to_parquet(tmp_path / "old.parquet", index=False)  # as others, or the first edition, wrote it
    assert read_table(tmp_path / "old.parquet").num_rows == 300
