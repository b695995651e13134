"""A model is loaded by the name of its repository, from a server that speaks the Hub's protocol on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import huggingface_hub
import numpy as np
import pytest
from tiny_model import Tiny

from soma.errors import SomaError
from soma.inference import Ensemble

NAME, COMMIT = "owner/tiny", "a" * 40


@dataclass
class Hub:
    """One repository with one commit, which is on the branch `main` and has the tag `v1`."""

    folder: Path
    url: str = ""
    fetched: list[str] = field(default_factory=list)
    """Files whose content was sent."""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a GET or HEAD request as the Hub does."""
        words = request.path.partition("?")[0].strip("/").split("/")
        match words:
            case ["api", "models", owner, name, "revision", revision]:
                if f"{owner}/{name}" != NAME:
                    return self._send(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
                if revision not in ("main", "v1", COMMIT):
                    return self._send(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
                files = [{"rfilename": path.name} for path in sorted(self.folder.iterdir())]
                about = {"id": NAME, "modelId": NAME, "sha": COMMIT, "siblings": files, "tags": [], "private": False}
                return self._send(request, 200, json.dumps(about).encode(), {"Content-Type": "application/json"})
            case ["api", "models", _, _, "tree", revision] if revision == COMMIT:
                tree = [
                    {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": _oid(path.read_bytes())}
                    for path in sorted(self.folder.iterdir())
                ]
                return self._send(request, 200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
            case [_, _, "resolve", revision, file] if revision in ("main", COMMIT) and (self.folder / file).is_file():
                data = (self.folder / file).read_bytes()
                if request.command == "GET":
                    self.fetched.append(file)
                return self._send(request, 200, data, {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": COMMIT})
        return self._send(request, 404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def _send(self, request: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(data)


def _oid(data: bytes) -> str:
    return sha1(data).hexdigest()


@pytest.fixture
def hub(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve a copy of the tiny model, beside a file that is none of the model's."""
    served = Hub(Path(shutil.copytree(tiny.folder, tmp_path / "served")))
    (served.folder / "training.log").write_text("long")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        served.url = f"http://127.0.0.1:{server.server_port}"
        template = huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE
        monkeypatch.setattr(
            huggingface_hub.constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            template.replace(huggingface_hub.constants.ENDPOINT, served.url),
        )
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", served.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        yield served
        server.shutdown()


def test_a_repository_is_a_model(tiny: Tiny, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Ensemble.load(NAME)
    np.testing.assert_array_equal(model.losses(tiny.windows(3)), tiny.ensemble().losses(tiny.windows(3)))
    assert sorted(hub.fetched) == sorted(["ensemble.json", *tiny.record.files])  # and nothing else of the repository
    hub.fetched.clear()
    for revision in ("v1", COMMIT):
        assert Ensemble.load(NAME, revision=revision).about == tiny.record
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert Ensemble.load(NAME).about == tiny.record
    assert hub.fetched == []  # they are in the cache


def test_a_folder_comes_before_a_repository_of_its_name(tiny: Tiny, hub: Hub) -> None:
    shutil.copytree(tiny.folder, NAME)
    assert Ensemble.load(NAME).about == tiny.record
    assert hub.fetched == []
    with pytest.raises(SomaError, match="has no revision v1"):
        Ensemble.load(NAME, revision="v1")


@pytest.mark.parametrize("name", ["weights.safetensors", "routing.safetensors", "vocabulary.json"])
def test_an_altered_file_is_refused_before_it_is_read(tiny: Tiny, hub: Hub, name: str) -> None:
    data = bytearray((hub.folder / name).read_bytes())
    data[-9] ^= 1
    (hub.folder / name).write_bytes(data)
    with pytest.raises(SomaError, match=f"{name} was altered"):
        Ensemble.load(NAME)


def test_what_cannot_be_fetched_is_one_sentence(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, revision, sentence in (
        ("owner/other", None, "there is no folder owner/other, and the Hub shows no repository owner/other"),
        (NAME, "v2", f"the repository {NAME} has no revision v2"),
        ("a/b/c", None, "there is no folder a/b/c"),
        ("tiny", "v1", "is not `owner/name`"),
    ):
        with pytest.raises(SomaError, match=sentence):
            Ensemble.load(name, revision=revision)
    (hub.folder / "ensemble.json").write_text("{}")
    with pytest.raises(SomaError, match="does not describe an ensemble"):
        Ensemble.load(NAME)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(SomaError, match="cannot be fetched from the Hub"):
        Ensemble.load("owner/third")


def test_the_command_line_takes_a_repository(tiny: Tiny, hub: Hub, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"\n".join(tiny.texts[:2]))
    command = [sys.executable, "-m", "soma.cli", "score", "--json", "--model", NAME, "--revision", "v1", str(text)]
    place = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=os.environ | place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["nats_per_byte"] == Ensemble.load(tiny.folder).score(text.read_bytes()).nats
