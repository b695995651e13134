"""Model folders from strangers: whatever they hold, loading ends with a usable model or with one sentence."""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save
from tiny_model import EXPERTS, SPEC, Tiny, make_experts

from soma.errors import SomaError
from soma.files.hashes import describe_files, sha256_json
from soma.inference import Ensemble
from soma.inference.compiled import _Request, available, load
from soma.inference.manifest import MANIFEST, ROUTING, WEIGHTS, WORDS

MATRIX = "experts.1.blocks.0.mlp_up"
FILES = (MANIFEST, WEIGHTS, ROUTING, WORDS)
TEXT = b"It was the best of times, it was the worst of times, it was the age of wisdom"


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    """End a test that waits for a pipe or reads without an end."""
    signal.alarm(300)
    yield
    signal.alarm(0)


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.folder, tmp_path / "model"))


def sign(folder: Path, record: Any) -> None:
    """Write a manifest with the id that its content has, as a stranger would."""
    if isinstance(record, dict):
        record = {key: value for key, value in record.items() if key != "id"}
        record["id"] = sha256_json(record)
    (folder / MANIFEST).write_text(json.dumps(record))


def manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / MANIFEST).read_text()))


def put(folder: Path, name: str, data: bytes) -> None:
    """Replace a file, and sign its new size and hash."""
    (folder / name).write_bytes(data)
    record = manifest(folder)
    sign(folder, record | {"files": record["files"] | describe_files(folder, [name])})


def refused(folder: Path, seconds: float = 5) -> str:
    """Return the sentence that loading ends with; check its form, its time and the memory that it took."""
    peak, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(SomaError) as caught:
        Ensemble.load(folder)
    assert time.monotonic() - start < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200 << 10  # kilobytes
    sentence = str(caught.value)
    assert sentence.replace("�", "").isprintable()
    assert len(sentence.replace(str(folder), "")) < 500
    return sentence


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        *(({key: value}, key) for key in ("width", "depth", "embedding", "experts") for value in (0, -1, 30_000_000)),
        ({"width": 13}, "parameters"),
        *(({"width": value}, "width") for value in (12.0, "12", True, None, [12], 10**400, math.nan)),
        *(({"k": value}, "k") for value in (0, EXPERTS + 1)),
        *(({"prefix": value}, "prefix") for value in (0, 80, -5)),
        ({"window": 1 << 40}, "window"),
        ({"shared_head": True}, "parameters"),
        ({"parameters": 7}, "parameters"),
        ({"update": -1}, "update"),
        ({"run": "\x1b[31mred"}, "run"),
        ({"iterate": "best"}, "iterate"),
        ({"files": {}}, "files"),
        ({"files": []}, "files"),
        ({"files": {WEIGHTS: {"bytes": 1, "sha256": "0" * 64}}}, "files"),
        ({"routing": None}, "files"),
        ({"routing": {"words": 1, "dims": 1, "assignment": "best"}}, "assignment"),
        ({"routing": {"words": 3000, "dims": 1 << 40, "assignment": "nearest"}}, "dims"),
        ({"sources": {"\x1b]0;title\x07": None}}, "sources"),
        ({"code": "import os"}, "code"),
        ({"\x1b[2J": 1}, "describes no model"),
        ({"format": 1}, "another format"),
        ({"experts": 1 << 16, "depth": 1 << 8}, "tensors"),
        ({"kind": "router"}, "does not describe"),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_a_manifest_of_no_model(folder: Path, changes: dict[str, Any], word: str) -> None:
    sign(folder, manifest(folder) | changes)
    assert word in refused(folder)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "features/features.npz", "a\x00b"])
def test_a_name_in_the_manifest_never_becomes_a_path(folder: Path, name: str) -> None:
    record = manifest(folder)
    sign(folder, record | {"files": record["files"] | {name: {"bytes": 5, "sha256": "0" * 64}}})
    assert "must list weights.safetensors, routing.safetensors, vocabulary.json and nothing else" in refused(folder)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 200_000, b'{"k": ' + b"9" * 5000 + b"}", b" " * (2 << 20), b"NaN"],
    ids=lambda text: f"{len(text)}-{text[:6]!r}",
)
def test_a_manifest_that_is_no_manifest(folder: Path, text: bytes) -> None:
    (folder / MANIFEST).write_bytes(text)
    refused(folder)


def weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> bytes:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    return save(tensors)


def value(number: float) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors[MATRIX][1].fill_(number)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *(
            (lambda t, d=dtype: t.update({MATRIX: t[MATRIX].to(d)}), "does not hold the tensors")
            for dtype in (torch.int8, torch.bool, torch.float16, torch.bfloat16, torch.complex64, torch.float64)
        ),
        (lambda t: t.update({MATRIX: t[MATRIX].view(torch.int32)}), "does not hold the tensors"),
        (lambda t: t.update({MATRIX: t[MATRIX].T.contiguous()}), "does not hold the tensors"),
        (lambda t: t.update({MATRIX: t[MATRIX][:, :-1].contiguous()}), "does not hold the tensors"),
        (lambda t: t.pop(MATRIX), "does not hold the tensors"),
        (lambda t: t.update(more=torch.zeros(3)), "does not hold the tensors"),
        (lambda t: t.update(more=torch.zeros(1 << 20)), "where the sizes allow"),
        *((value(number), "not numbers") for number in (math.nan, math.inf, -math.inf)),
    ],
    ids=lambda value: value if isinstance(value, str) else "weights",
)
def test_weights_of_no_model(folder: Path, change: Any, sentence: str) -> None:
    put(folder, WEIGHTS, weights(folder, change))
    assert sentence in refused(folder)


@pytest.mark.parametrize("name", [WEIGHTS, ROUTING])
@pytest.mark.parametrize(
    "header",
    [b"{", b"[]", b"\xff" * 9, b"{}" + b" " * 5000, b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}'],
    ids=lambda header: ascii(header[:9]),
)
def test_headers_of_no_tensors(folder: Path, name: str, header: bytes) -> None:
    for length in (len(header), 0, 2**63, 2**64 - 1, 100_000_001):
        put(folder, name, struct.pack("<Q", length) + header + bytes(36))
        refused(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda words: [*words[:-1], "\x1b[31mred"], "unprintable"),
        (lambda words: [*words[:-1], "\u202egnp"], "unprintable"),
        (lambda words: [*words[:-1], words[0]], "different words"),
        (lambda words: words[:-1], "different words"),
        (lambda words: [*words[:-1], 3], "not a list of words"),
        (lambda words: [*words[:-1], ""], "not a list of words"),
        (lambda words: dict.fromkeys(words), "not a list of words"),
        (lambda words: [words], "not a list of words"),
    ],
)
def test_words_of_no_vocabulary(folder: Path, change: Any, sentence: str) -> None:
    put(folder, WORDS, json.dumps(change(json.loads((folder / WORDS).read_text()))).encode())
    with pytest.raises(SomaError, match=sentence):
        Ensemble.load(folder)
    refused(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "dangling link", "link to itself", "200 GB of nothing"])
def test_what_is_no_regular_file_is_never_opened(folder: Path, name: str, kind: str) -> None:
    path = folder / name
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "200 GB of nothing":
        path.touch()
        os.truncate(path, 200 << 30)
    else:
        path.symlink_to({"device": "/dev/zero", "dangling link": "nowhere", "link to itself": name}[kind])
    refused(folder)


def test_a_model_larger_than_this_machine(folder: Path) -> None:
    """A sparse file takes no space on disk; its manifest is that of a model of this size."""
    experts, width = 1 << 10, 1 << 11
    size = 16 * 2 * width**2 + 5 * width + 2 * SPEC.embedding * width
    numbers = experts * size + 256 * SPEC.embedding
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).touch()
    os.truncate(folder / WEIGHTS, 4 * numbers)
    record = manifest(folder)
    files = record["files"] | {WEIGHTS: {"bytes": 4 * numbers, "sha256": "0" * 64}}
    sizes = {"experts": experts, "width": width, "shared_head": True, "parameters": numbers, "files": files}
    sign(folder, record | sizes)
    assert "bytes of memory and this machine has" in refused(folder)


def test_a_link_to_a_regular_file_is_followed(folder: Path, tmp_path: Path) -> None:
    """As in the cache of a model hub, where every file is a link."""
    for name in FILES:
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
    Ensemble.load(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def other_manifest(draw: st.DrawFn, record: dict[str, Any]) -> Any:
    """Replace, drop or add a value somewhere in a manifest."""
    record = json.loads(json.dumps(record))
    at: Any = record
    key = draw(st.sampled_from(sorted(at)))
    while isinstance(at[key], dict) and at[key] and draw(st.booleans()):
        at = at[key]
        key = draw(st.sampled_from(sorted(at)))
    match draw(st.sampled_from(("replace", "nudge", "drop", "add"))):
        case "replace":
            at[key] = draw(JSON)
        case "nudge" if isinstance(at[key], int):
            at[key] += draw(st.integers(-3, 3))
        case "drop":
            del at[key]
        case _:
            at[draw(st.text(max_size=8))] = draw(JSON)
    return record


@st.composite
def other_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Change, cut or repeat bytes, most often in the first ones, which hold the header."""
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, min(len(data), 700)) | st.integers(0, len(data)))
        some = draw(st.binary(max_size=9))
        match draw(st.sampled_from(("overwrite", "insert", "remove", "truncate", "length"))):
            case "overwrite":
                data = data[:place] + some + data[place + len(some) :]
            case "insert":
                data = data[:place] + some + data[place:]
            case "remove":
                data = data[:place] + data[place + len(some) :]
            case "truncate":
                data = data[:place]
            case _:
                data = struct.pack("<Q", draw(st.integers(0, 2**64 - 1) | st.integers(0, 1000))) + data[8:]
    return data


def use(folder: Path) -> None:
    """Load and use the model in a folder: either all of it works, or a sentence says what is wrong."""
    sentence = ""
    try:
        with np.errstate(all="ignore"):  # finite weights may still overflow
            model = Ensemble.load(folder)
            assert model.score(TEXT * 2).nats >= 0
            assert len(b"".join(model.sample(TEXT, 2))) == 2
            assert model.router is None or math.isfinite(model.route(TEXT).similarities[0])
    except SomaError as error:
        sentence = str(error)
    assert sentence.replace("�", "").isprintable()


@pytest.fixture(scope="module")
def fuzzed(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(tiny.folder, tmp_path_factory.mktemp("fuzz") / "model"))


def restore(tiny: Tiny, folder: Path) -> None:
    for name in FILES:
        shutil.copyfile(tiny.folder / name, folder / name)


CASES = settings(
    max_examples=1000, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@CASES
@given(data=st.data())
def test_a_thousand_manifests(tiny: Tiny, fuzzed: Path, data: st.DataObject) -> None:
    restore(tiny, fuzzed)
    sign(fuzzed, data.draw(other_manifest(manifest(tiny.folder))))
    use(fuzzed)


@CASES
@given(data=st.data())
def test_a_thousand_damaged_files(tiny: Tiny, fuzzed: Path, data: st.DataObject) -> None:
    restore(tiny, fuzzed)
    name = data.draw(st.sampled_from(FILES))
    damaged = data.draw(other_bytes((tiny.folder / name).read_bytes()))
    if name == MANIFEST:
        (fuzzed / name).write_bytes(damaged)
    else:
        put(fuzzed, name, damaged)
    use(fuzzed)


@pytest.mark.skipif(not available(), reason="the inference kernel is not built")
def test_the_kernel_checks_its_own_arguments() -> None:
    """Called without the Python around it, which would refuse all of these as well."""
    experts = make_experts(SPEC, 2, shared=True)
    theta, head = experts.theta.contiguous(), experts.distinct_heads.contiguous()
    library = next(each for isa in ("avx512", "avx2", "plain") if (each := load(isa)) is not None)
    handle = ctypes.c_void_p()
    good = {
        "width": SPEC.width, "depth": SPEC.depth, "embedding": SPEC.embedding, "experts": 2, "theta": theta.data_ptr(),
        "floats": theta.numel(), "head": head.data_ptr(), "head_floats": head.numel(),
    }  # fmt: skip

    def opened(**changes: int | None) -> int:
        return int(library.soma_infer_open(*(good | changes).values(), ctypes.byref(handle)))

    for name in ("width", "depth", "embedding", "experts"):
        for number in (0, -1, good[name] + 1, 30_000_000, 2**31 - 1):
            assert opened(**{name: number}) == 2, (name, number)
    for name in ("theta", "head"):
        assert opened(**{name: None}) == 2
    for name in ("floats", "head_floats"):
        for number in (0, -1, good[name] - 1, good[name] + 1, 2**62):
            assert opened(**{name: number}) == 2, (name, number)
    assert handle.value is None
    assert opened() == 0

    expert, sequence = np.array([0, 1], np.int32), np.array([0, 0], np.int32)
    tokens, losses = np.zeros((1, 10), np.uint8), np.empty((2, 9))
    fields: dict[str, Any] = {
        "pairs": 2, "time": 9, "scored": 9, "threads": 1, "rows": 1, "expert": expert.ctypes.data,
        "sequence": sequence.ctypes.data, "tokens": tokens.ctypes.data, "stride": 10, "losses": losses.ctypes.data,
    }  # fmt: skip

    def run(**changes: int | None) -> int:
        return int(library.soma_infer_run(handle, ctypes.byref(_Request(**(fields | changes)))))

    for changes in (
        *({name: number} for name in ("time", "scored", "threads") for number in (0, -1, 2**31 - 1)),
        *({"pairs": number} for number in (-1, 2**31 - 1)), {"scored": 10}, {"time": 10}, {"stride": 9}, {"rows": 0},
        {"expert": None}, {"sequence": None}, {"tokens": None},
    ):  # fmt: skip
        assert run(**changes) == 2, changes
    for array in (expert, sequence):
        for wrong in (-1, 2, 2**31 - 1):
            array[1] = wrong
            assert run() == 2
        array[1] = 0
    assert run() == 0
    assert np.isfinite(losses).all()
    library.soma_infer_close(handle)
