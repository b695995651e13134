from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from soma.config.data import Data, TextSource
from soma.data import windows as module
from soma.data.download import download
from soma.data.encode import encode
from soma.data.windows import TrainWindows, expert_validation_mask
from soma.errors import SomaError
from soma.numerics.rng import Stream


@pytest.fixture
def train(folder: Any, tmp_path: Path) -> Any:
    """Return a function that encodes a training text and returns its folder."""

    def make(*texts: bytes) -> Path:
        source = TextSource(source="text", path=str(folder("text", {f"{i}.txt": t for i, t in enumerate(texts)})))
        download(source, tmp_path / "download")
        encode("train", Data(train=source, separator="|"), tmp_path / "download", tmp_path / "train")
        return tmp_path / "train"

    return make


def test_windows_are_consecutive_and_every_byte_has_a_target(train: Any) -> None:
    directory = train(b"abcdefgh", b"ijklm")  # abcdefgh|ijklm: 14 bytes
    text = (directory / "bytes.bin").read_bytes()
    for window in range(2, 14):
        windows = TrainWindows(directory, window)
        assert len(windows) == sum(1 for i in range(14) if (i + 1) * window + 1 <= 14)
        whole = windows.read(np.arange(len(windows)))
        assert whole.dtype == np.uint8
        assert whole.tobytes() == text[: len(windows) * window]
        assert windows.crops([len(windows) - 1], [0], window)[0, -1] == text[len(windows) * window]


def test_crops_are_slices_of_the_text(train: Any) -> None:
    text = np.random.default_rng(0).integers(97, 122, 1000).astype(np.uint8).tobytes()
    windows = TrainWindows(train(text), 64)
    rng = np.random.default_rng(1)
    ids, offsets = rng.integers(0, len(windows), 50), rng.integers(0, 64 - 20 + 1, 50)
    crops = windows.crops(ids, offsets, 20)
    for crop, i, o in zip(crops, ids, offsets, strict=True):
        assert crop.tobytes() == text[i * 64 + o : i * 64 + o + 21]
    assert windows.crops([], [], 20).shape == (0, 21)
    crops[:] = 0  # a copy
    assert windows.read([0]).tobytes() == text[:64]


def test_crops_and_ids_out_of_range_are_refused(train: Any) -> None:
    windows = TrainWindows(train(b"x" * 100), 10)
    assert len(windows) == 9
    for ids in ([9], [-1]):
        with pytest.raises(IndexError, match=r"\[0, 9\)"):
            windows.read(ids)
    for offset in (-1, 4):
        with pytest.raises(ValueError, match="does not fit"):
            windows.crops([0], [offset], 7)


def test_too_little_text_and_altered_text(train: Any) -> None:
    directory = train(b"x" * 10)
    assert len(TrainWindows(directory, 9)) == 1
    with pytest.raises(SomaError, match=r"has 10 bytes of training text, too few for one window of 10 bytes"):
        TrainWindows(directory, 10)
    (directory / "bytes.bin").write_bytes(b"x" * 11)
    with pytest.raises(SomaError, match="has 11 bytes where its manifest says 10"):
        TrainWindows(directory, 9)


def test_expert_validation_is_a_property_of_each_window(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream.named(3, "expert-validation")
    mask = expert_validation_mask(20_000, 0.01, stream)
    assert 150 < mask.sum() < 250
    assert (expert_validation_mask(5_000, 0.01, stream) == mask[:5_000]).all()
    monkeypatch.setattr(module, "_IDS", 999)
    assert (expert_validation_mask(20_000, 0.01, stream) == mask).all()
    assert (expert_validation_mask(20_000, 0.02, stream) >= mask).all()
    assert (expert_validation_mask(20_000, 0.01, Stream.named(4, "expert-validation")) != mask).any()
    for i in (0, 7, 19_999):
        assert mask[i] == (stream.uniform(1, direction=i)[0] < 0.01)
