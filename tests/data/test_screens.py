from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from soma.data import screens
from soma.data.screens import share_substring, shared_values, substring_hashes


class Windows:
    """A substitute for TrainWindows."""

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self.rows, self.window = rows, rows.shape[1]

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self.rows[ids]


def brute_force(windows: NDArray[np.uint8], train: NDArray[np.uint8], length: int) -> list[bool]:
    length = min(length, train.shape[1])
    known = {r.tobytes()[i : i + length] for r in train for i in range(train.shape[1] - length + 1)}
    return [any(w.tobytes()[i : i + length] in known for i in range(len(w) - length + 1)) for w in windows]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 8, 12, 16, 128])
def test_hash_is_the_polynomial_of_its_bytes(length: int) -> None:
    windows = np.random.default_rng(length).integers(0, 256, (3, 140), dtype=np.uint8)
    hashes = substring_hashes(windows, length)
    assert hashes.shape == (3, 140 - length + 1)
    values = substring_hashes(np.arange(256, dtype=np.uint8)[:, None], 1)[:, 0]
    assert len(set(values.tolist())) == 256
    for row, column in [(0, 0), (1, 5), (2, 140 - length)]:
        expected = 0
        for byte in windows[row, column : column + length]:
            expected = (expected * screens._BASE + int(values[byte])) % (1 << 64)
        assert int(hashes[row, column]) == expected


@pytest.mark.parametrize("seed", range(12))
def test_shared_substrings_as_brute_force_finds_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    letters = 2 if seed % 2 else 3
    train = rng.integers(0, letters, (40, 30), dtype=np.uint8)
    windows = rng.integers(0, letters, (60, 31), dtype=np.uint8)
    windows[:5] = 0  # runs of one byte: the same substring at many positions
    ids = np.flatnonzero(rng.random(40) < 0.5)
    monkeypatch.setattr(screens, "_CHUNK_BYTES", 30 * 7)
    some = set()
    for length in (6, 9, 13, 64):
        expected = brute_force(windows, train[ids], length)
        assert share_substring(windows, Windows(train), ids, length).tolist() == expected
        some.update(expected)
    assert some == {True, False}


def test_128_bytes_are_shared_and_127_are_not() -> None:
    rng = np.random.default_rng(0)
    train = rng.integers(0, 256, (4, 512), dtype=np.uint8)
    windows = rng.integers(0, 256, (6, 513), dtype=np.uint8)
    windows[0, 385:513] = train[2, 0:128]  # up to the last target
    windows[1, 7:134] = train[3, 100:227]
    windows[2, :128] = train[1, -128:]
    windows[3, :128] = np.concatenate([train[0, -64:], train[1, :64]])  # two training windows
    windows[4, 100:228] = train[0, 100:228]  # window 0 is not among the ids
    found = share_substring(windows, Windows(train), np.array([1, 2, 3]))
    assert found.tolist() == [True, False, True, False, False, False]


def test_a_collision_excludes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    train, windows = rng.integers(0, 256, (3, 40), dtype=np.uint8), rng.integers(0, 256, (5, 41), dtype=np.uint8)
    monkeypatch.setattr(screens, "substring_hashes", lambda w, n: np.zeros((len(w), w.shape[1] - n + 1), np.uint64))
    assert not share_substring(windows, Windows(train), np.arange(3), 16).any()


def test_nothing_to_compare() -> None:
    train = Windows(np.zeros((2, 20), np.uint8))
    assert share_substring(np.zeros((0, 21), np.uint8), train, np.arange(2)).shape == (0,)
    nothing = np.arange(0)
    assert not share_substring(np.zeros((3, 21), np.uint8), train, nothing).any()


def test_shared_values_column_by_column(tmp_path: Path) -> None:
    def table(ids: list[str], hashes: list[int]) -> pa.Table:
        digests = pa.array([bytes([h]) * 31 + b"\0" for h in hashes], pa.binary(32))
        return pa.table({"id": ids, "sha256": digests})

    pq.write_table(table(["a", "b", "", "d"], [1, 2, 3, 4]), tmp_path / "documents.parquet")
    ours = table(["b", "x", "", "d", "b"], [9, 1, 8, 4, 1])
    shared = shared_values(tmp_path, ours, ["id", "sha256"])
    assert shared["id"].tolist() == [True, False, False, True, True]
    assert shared["sha256"].tolist() == [False, True, False, True, True]
