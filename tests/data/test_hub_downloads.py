"""Downloads from a Hub that fails in every way that we know."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer, serving
from huggingface_hub import constants

from soma.config.data import FineWebSource, WikiTextSource
from soma.data.download import download
from soma.data.sources import Document, parts
from soma.errors import SomaError
from soma.files.hashes import sha256_file

NAME = "000_00000.parquet"


@pytest.fixture
def hub(fineweb: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Serve the data set in place of the Hub, which is given up after a fifth of a second of silence."""
    (fineweb / "sample" / "100BT" / "README.md").write_text("not parquet")
    with serving(fineweb) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
        yield server


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses that would have been made."""
    made: list[float] = []
    monkeypatch.setattr("time.sleep", made.append)
    return made


def remote(**settings: Any) -> FineWebSource:
    return FineWebSource(source="fineweb-edu", **({"files": (0, 1)} | settings))


def read(source: FineWebSource | WikiTextSource) -> list[Document]:
    return [document for part in parts(source) for document in part.read()]


def pieces(directory: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(directory.glob("*.parquet"))}


def downloaded(source: FineWebSource, directory: Path, fineweb: Path) -> bool:
    """Download; return True if all is there and equal to what a local copy gives."""
    download(source, directory)
    expected = directory.with_name("expected")
    download(source.model_copy(update={"path": str(fineweb)}), expected)
    names = {path.name for path in directory.iterdir()}
    return pieces(directory) == pieces(expected) and names == {*pieces(expected), "manifest.json"}


def test_whole_files_are_copied_by_one_request_each(hub: HubServer, fineweb: Path, tmp_path: Path) -> None:
    assert downloaded(remote(files=(0, 3)), tmp_path / "out", fineweb)
    sizes = [(fineweb / "sample/100BT" / f"00{i}_00000.parquet").stat().st_size for i in range(3)]
    assert hub.ranges == [(f"00{i}_00000.parquet", 0, size) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("settings", [{"row_groups": 3, "rows_per_group": 5, "files": (0, 3)}, {"bytes": 900}])
def test_a_small_part_of_a_file_is_fetched_alone(
    hub: HubServer, fineweb: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    assert downloaded(remote(**settings), tmp_path / "out", fineweb)
    columns = [(start, stop) for name, start, stop in hub.ranges if name == NAME][1:]  # after the footer, of 64 kB
    assert sum(stop - start for start, stop in columns) < (fineweb / "sample/100BT" / NAME).stat().st_size / 2


RETRIED = ["stall", "429", "500", "503", "403", "short", "no range", "another range", "cut off", "stall half-way"]


@pytest.mark.parametrize("fault", RETRIED)
def test_a_row_group_is_fetched_again_after_a_fault(
    hub: HubServer, fineweb: Path, tmp_path: Path, pauses: list[float], fault: str
) -> None:
    hub.faults = ["", fault]
    assert downloaded(remote(row_groups=2), tmp_path / "out", fineweb)
    assert pauses == [1]


@pytest.mark.parametrize("fault", [*RETRIED, "a flipped bit"])
def test_a_copy_is_complete_in_spite_of_a_fault(
    hub: HubServer, fineweb: Path, tmp_path: Path, pauses: list[float], fault: str
) -> None:
    hub.faults = ["cut off", fault]
    assert downloaded(remote(), tmp_path / "out", fineweb)
    assert 1 <= len(pauses) <= 3


@pytest.mark.parametrize("fault", ["cut off", "stall half-way", "short"])
def test_a_copy_goes_on_where_it_was_cut(
    hub: HubServer, fineweb: Path, tmp_path: Path, pauses: list[float], fault: str
) -> None:
    """As long as every request brings something, any number of them is made, and nothing is fetched twice."""
    hub.faults = [fault] * 8
    assert downloaded(remote(), tmp_path / "out", fineweb)
    starts = [start for _, start, _ in hub.ranges]
    size = (fineweb / "sample/100BT" / NAME).stat().st_size
    expected = [0]
    for _ in range(8):
        expected.append(expected[-1] + (size - expected[-1]) // 2)
    assert starts == expected
    assert pauses == [1] * 8


def test_a_stopped_copy_goes_on_in_the_next_call(
    hub: HubServer, fineweb: Path, tmp_path: Path, pauses: list[float]
) -> None:
    hub.faults = ["", "cut off", *["503"] * 6]
    with pytest.raises(
        SomaError, match=r"001_00000\.parquet cannot be read \(HfHubHTTPError: .*503.*rerun: finished files"
    ):
        download(remote(files=(0, 3)), tmp_path / "out")
    assert pauses == [1, 2, 4, 8, 16, 32]
    assert not (tmp_path / "out").exists()
    half = (tmp_path / "out.partial" / "copies" / "001_00000.parquet").stat().st_size
    hub.ranges.clear()
    assert downloaded(remote(files=(0, 3)), tmp_path / "out", fineweb)
    assert [(name, start) for name, start, _ in hub.ranges] == [("001_00000.parquet", half), ("002_00000.parquet", 0)]
    assert not (tmp_path / "out.partial").exists()


def test_a_copy_of_other_settings_is_dropped(
    hub: HubServer, fineweb: Path, tmp_path: Path, pauses: list[float]
) -> None:
    hub.faults = ["cut off", *["503"] * 6]
    with pytest.raises(SomaError, match="503"):
        download(remote(), tmp_path / "out")
    hub.ranges.clear()
    assert downloaded(remote(revision="0" * 40), tmp_path / "out", fineweb)
    assert hub.ranges[0][1] == 0


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"Retry-After": "77"}, 77),
        ({"RateLimit": '"resolvers";r=0;t=123'}, 123),
        ({"Retry-After": "soon"}, 1),
        ({}, 1),
    ],
)
@pytest.mark.parametrize("asked", ["listing", "file"])
def test_the_server_says_how_long_to_wait(
    hub: HubServer,
    fineweb: Path,
    tmp_path: Path,
    pauses: list[float],
    headers: dict[str, str],
    pause: float,
    asked: str,
) -> None:
    hub.headers = headers
    (hub.listing_faults if asked == "listing" else hub.faults).append("429")
    assert downloaded(remote(), tmp_path / "out", fineweb)
    assert pauses == [pause]


def test_a_date_to_wait_for(hub: HubServer, fineweb: Path, tmp_path: Path, pauses: list[float]) -> None:
    hub.headers = {"Retry-After": formatdate(time.time() + 300, usegmt=True)}
    hub.faults = ["503"]
    assert downloaded(remote(), tmp_path / "out", fineweb)
    [pause] = pauses
    assert 200 < pause <= 300


def test_nobody_waits_for_an_hour(hub: HubServer, tmp_path: Path, pauses: list[float]) -> None:
    hub.headers, hub.faults = {"Retry-After": "3600"}, ["429"]
    with pytest.raises(SomaError, match="the server asks to wait 3600 seconds"):
        download(remote(), tmp_path / "out")
    assert not pauses


@pytest.mark.parametrize("settings", [{}, {"row_groups": 2}])
def test_another_etag_stops_the_download(
    hub: HubServer, tmp_path: Path, pauses: list[float], settings: dict[str, Any]
) -> None:
    hub.faults = ["", "another ETag"] if settings else ["cut off", "another ETag"]
    with pytest.raises(SomaError, match=r"000_00000\.parquet is no longer the file that the Hub listed \(ETag"):
        download(remote(**settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("settings", [{}, {"row_groups": 2}])
def test_a_lost_file_is_not_asked_for_again(
    hub: HubServer, tmp_path: Path, pauses: list[float], settings: dict[str, Any]
) -> None:
    hub.faults = ["", "404"] if settings else ["404"]
    with pytest.raises(
        SomaError, match=r"000_00000\.parquet does not exist; check the source's path, revision and folder"
    ):
        download(remote(**settings), tmp_path / "out")
    assert not pauses
    assert not (tmp_path / "out").exists()


def test_bytes_of_another_hash_are_fetched_once_more_and_then_refused(
    hub: HubServer, tmp_path: Path, pauses: list[float]
) -> None:
    hub.faults = ["a flipped bit", "a flipped bit"]
    with pytest.raises(SomaError, match=r"was fetched twice, but its bytes do not have the SHA-256"):
        download(remote(), tmp_path / "out")
    assert len(hub.ranges) == 2
    assert list((tmp_path / "out.partial").rglob("*.parquet")) == []


def test_a_hub_that_is_silent_is_given_up(hub: HubServer, tmp_path: Path, pauses: list[float]) -> None:
    hub.faults = ["stall"] * 7
    with pytest.raises(SomaError, match=r"000_00000\.parquet cannot be read \(ReadTimeout"):
        download(remote(), tmp_path / "out")
    assert pauses == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize("fault", ["stall", "503"])
def test_a_listing_is_given_up_soon(
    hub: HubServer, pauses: list[float], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: sum(pauses))
    hub.listing_faults = [fault] * 7
    with pytest.raises(SomaError, match=r"fineweb-edu@[0-9a-f]{40}/sample/100BT cannot be read"):
        parts(remote())
    assert pauses == [1, 2, 4]


def test_a_folder_that_the_hub_does_not_have(hub: HubServer, pauses: list[float]) -> None:
    with pytest.raises(SomaError, match="does not exist; check the source's path, revision and folder"):
        parts(remote(sample="sample/1BT"))
    assert not pauses


def test_the_files_of_a_split_are_copied_together(
    hub: HubServer, fineweb: Path, tmp_path: Path, pauses: list[float]
) -> None:
    folder = fineweb / "wikitext-2-raw-v1"
    folder.mkdir()
    for i in range(2):
        (folder / f"test-0000{i}-of-00002.parquet").write_bytes(
            (fineweb / "sample/100BT" / f"00{i}_00000.parquet").read_bytes()
        )
    source = WikiTextSource(source="wikitext", config="wikitext-2-raw-v1", splits=("test",))
    hub.faults = ["", "cut off"]
    download(source, tmp_path / "out")
    download(source.model_copy(update={"path": str(fineweb)}), tmp_path / "expected")
    assert pieces(tmp_path / "out") == pieces(tmp_path / "expected")
    assert [start > 0 for _, start, _ in hub.ranges] == [False, False, True]
    assert read(source) == read(source.model_copy(update={"path": str(fineweb)}))
