"""Python programs as forks of one process that has their libraries: a new one imports for a second or two.

`run` does what `subprocess.run` does for `python -m WORDS`. Nothing of `soma` is imported before the fork, so that a
program runs the code of the folder that its PYTHONPATH names.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIBRARIES = (
    *("snakemake.cli", "snakemake.persistence.file", "snakemake_executor_plugin_slurm.efficiency_report", "smart_open"),
    *("dvc.cli", "dvc.repo", "dvc_data.index", "dvc_data.hashfile.db.local"),
    *("torch", "numpy", "scipy.stats", "sklearn.cluster", "sklearn.decomposition", "sklearn.feature_extraction.text"),
    *("pandas", "pyarrow.parquet", "pydantic", "yaml", "safetensors.torch", "matplotlib.figure", "jinja2"),
)
_servers: list[subprocess.Popen[str]] = []


def run(words: list[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `python -m WORDS` in a folder."""
    if not _servers:
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        code = "from tests.zygote import serve; serve()"
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        root = Path(__file__).parents[1]
        _servers.append(subprocess.Popen([sys.executable, "-c", code], cwd=root, env=alone, **pipes))
        atexit.register(_servers[0].communicate)  # which closes its standard input, so that it ends
    [server] = _servers
    with tempfile.TemporaryDirectory() as said:
        request = {"words": words, "folder": str(folder), "environment": dict(environment), "said": said}
        print(json.dumps(request), file=server.stdin, flush=True)
        status = int(server.stdout.readline())
        out, err = (Path(said, name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(words, status, out, err)


def serve() -> None:
    """Fork for every line of standard input; answer each with the exit status."""
    for name in LIBRARIES:
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith("soma")], "a library imports soma from here"
    sys.path = [path for path in sys.path if path]  # that of this process, for `-c`
    gc.disable()  # a fork ends soon, and would look for garbage among all of these libraries
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become(words: list[str], folder: str, environment: dict[str, str], said: str) -> None:
    """Turn this process into `python -m WORDS`."""
    status = 1
    try:
        for number, name in enumerate(("/dev/null", f"{said}/out", f"{said}/err")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 (until the process ends)
            for number, mode in enumerate("rww")
        )
        os.chdir(folder)
        os.environ.clear()
        os.environ |= environment
        sys.path[:0] = [folder, *environment["PYTHONPATH"].split(os.pathsep)]
        sys.argv = list(words)
        status = _status(words[0])
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _status(module: str) -> int:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
