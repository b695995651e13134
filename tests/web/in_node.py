"""Ask the page's model in Node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from soma.web import demo
from soma.web.kernel import KERNEL

SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1, "topK": None, "topP": None, "seed": 0},
    {"temperature": 0.7, "topK": 40, "topP": 0.9, "seed": 12},
    {"temperature": 0, "topK": None, "topP": None, "seed": 3},
]


def ask(folder: Path, scratch: Path, requests: list[dict[str, Any]]) -> dict[str, Any]:
    about, numbers = demo.pack(folder)
    (scratch / "numbers").write_bytes(numbers)
    asked = {"wasm": str(KERNEL), "numbers": str(scratch / "numbers"), "about": about, "requests": requests}
    program = Path(__file__).with_name("model.mjs")
    done = subprocess.run(["node", program], input=json.dumps(asked).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
