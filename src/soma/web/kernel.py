"""Build of `kernel.wasm`, the inference kernel for a browser: `make kernel` (needs `pip install --group demo`).

The file is committed, so that nobody else needs the compiler. The compiler's version is part of what the bytes depend
on: tests/web/test_kernel.py builds the file again where that version is installed, and compares.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
KERNEL = HERE / "kernel.wasm"
COMPILER = "0.17.1"
"""Version of ziglang, as in pyproject.toml's group `demo`."""

_EXPORTS = ("infer_request_bytes", "infer_open", "infer_close", "infer_state", "infer_run")
_OWN_EXPORTS = ("web_allocate", "web_free", "web_uniform")


def build(output: Path) -> None:
    """Compile csrc/wasm.cpp, with the flags that every library of the package has.

    Raises:
        subprocess.CalledProcessError: if the compiler is missing or refuses the source.
    """
    flags = json.loads((HERE.parent / "forward/csrc/flags.json").read_text(encoding="utf-8"))["all"]
    command = [
        *(sys.executable, "-m", "ziglang", "c++", "-target", "wasm32-wasi", "-mcpu=generic+simd128+bulk_memory"),
        *(flag for flag in flags if flag != "-pthread"),
        *("-s", "-fexceptions", "-fignore-exceptions", "-mexec-model=reactor", "-Icsrc", "csrc/wasm.cpp"),
        *(f"-Wl,--export=soma_{name}" for name in _EXPORTS + _OWN_EXPORTS),
        *("-o", str(output.resolve())),
    ]
    subprocess.run(command, cwd=HERE, check=True)


if __name__ == "__main__":
    build(KERNEL)
