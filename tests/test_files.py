import os

import pytest

from soma.errors import SomaError
from soma.files.atomic import atomic_directory, atomic_path, read_json, write_json
from soma.files.hashes import check_files, describe_files


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


def test_a_failed_directory_leaves_the_old_one(tmp_path):
    target = tmp_path / "d"
    with atomic_directory(target) as d:
        (d / "f").write_text("old")

    def fail():
        with atomic_directory(target) as d:
            (d / "f").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (target / "f").read_text() == "old"
    assert os.listdir(tmp_path) == ["d"]


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


def test_broken_json_is_one_sentence(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": ')
    with pytest.raises(SomaError, match=r"x\.json is not readable JSON"):
        read_json(path)
