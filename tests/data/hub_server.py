"""A data set on the Hub, served from a folder over HTTP, with faults on request."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPOSITORY = "HuggingFaceFW/fineweb-edu"


class HubServer(ThreadingHTTPServer):
    """Serves the listing of a folder and its files, whole or by ranges.

    Attributes:
        faults: what to do wrong at the next requests for files, one entry each; "" is an answer without a fault.
        listing_faults: the same for requests of the listing.
        ranges: (file, first byte, last byte) of every request for a file.
        headers: further headers of answers with an error status.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.faults: list[str] = []
        self.listing_faults: list[str] = []
        self.ranges: list[tuple[str, int, int]] = []
        self.headers: dict[str, str] = {}
        self.ended = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(root: Path) -> Iterator[HubServer]:
    with HubServer(root) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        _, kind, rest = re.split(r"/tree/[0-9a-f]{40}/|(/resolve/)[0-9a-f]{40}/", self.path, maxsplit=1)
        if kind is None:
            self._list(rest)
        else:
            self._send(rest)

    def _list(self, folder: str) -> None:
        if self._failed(self.server.listing_faults.pop(0) if self.server.listing_faults else ""):
            return
        entries = (
            [
                {
                    "type": "file",
                    "path": f"{folder}/{path.name}",
                    "lfs": {"oid": hashlib.sha256(path.read_bytes()).hexdigest(), "size": path.stat().st_size},
                }
                for path in sorted((self.server.root / folder).iterdir(), reverse=True)
            ]
            if (self.server.root / folder).is_dir()
            else None
        )
        if entries is None:
            self._answer(404, b"", {})
        else:
            self._answer(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def _send(self, name: str) -> None:
        fault = self.server.faults.pop(0) if self.server.faults else ""
        whole = (self.server.root / name).read_bytes()
        [(first, last)] = re.findall(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        start, stop = int(first), int(last) + 1
        self.server.ranges.append((Path(name).name, start, stop))
        headers = {
            "X-Linked-ETag": f'"{hashlib.sha256(whole).hexdigest()}"',
            "Content-Range": f"bytes {first}-{last}/{len(whole)}",
        }
        body = whole[start:stop]
        half = len(body) // 2
        if self._failed(fault):
            return
        if fault == "another ETag":
            headers["X-Linked-ETag"] = '"' + "0" * 64 + '"'
        elif fault == "another range":
            headers["Content-Range"] = f"bytes 0-{stop - start - 1}/{len(whole)}"
        elif fault == "no range":
            body = whole
            del headers["Content-Range"]
        elif fault == "a flipped bit":
            body = body[:half] + bytes([body[half] ^ 1]) + body[half + 1 :]
        elif fault == "short":
            body = body[:half]
        if fault in ("cut off", "stall half-way"):
            self.send_response(206)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body[:half])
            self.wfile.flush()
            self.close_connection = True
            if fault == "stall half-way":
                self.server.ended.wait()
        else:
            self._answer(200 if fault == "no range" else 206, body, headers)

    def _failed(self, fault: str) -> bool:
        """Carry out a fault that leaves no answer of use."""
        if fault == "stall":
            self.close_connection = True
            self.server.ended.wait()
        elif fault.isdigit():
            self._answer(int(fault), b"", self.server.headers)
        return fault == "stall" or fault.isdigit()

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)
