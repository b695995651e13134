"""Speed of the page beside the command line: `python benchmarks/demo.py --model FOLDER`; needs Node.

Both score the same text and write as many bytes after the same prompt, of R bytes, in turn and on one thread. Rates are
bytes per second of processor time (median of 5 after a warm-up), which other work on the machine disturbs less than
elapsed time. Writes benchmarks/demo.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from soma.accounting.machine import device_name
from soma.inference import Ensemble
from soma.web.demo import pack
from soma.web.kernel import KERNEL

TEXT, LENGTH, REPEATS = 50_000, 2_000, 5
HERE = Path(__file__).parent


def seconds(work: Callable[[], object]) -> list[float]:
    """Return the processor seconds of each repeat."""
    out = []
    for _ in range(REPEATS + 1):
        before = time.process_time()
        work()
        out.append(time.process_time() - before)
    return out[1:]


def page(model: Path, text: bytes) -> dict[str, list[float]]:
    """Time the page's model in Node."""
    about, numbers = pack(model)
    with tempfile.NamedTemporaryFile() as file:
        file.write(numbers)
        file.flush()
        asked = {"wasm": str(KERNEL), "numbers": file.name, "about": about, "text": text.hex()}
        request = json.dumps({**asked, "length": LENGTH, "repeats": REPEATS}).encode()
        done = subprocess.run(["node", HERE / "demo.mjs"], input=request, capture_output=True, check=True)
    times: dict[str, list[float]] = json.loads(done.stdout)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder that `soma export` wrote")
    folder = parser.parse_args().model
    torch.set_num_threads(1)
    model = Ensemble.load(folder)
    text = (Path(__file__).read_bytes() * (TEXT // 1000))[:TEXT]
    native = {
        "score": seconds(lambda: model.score(text)),
        "sample": seconds(lambda: list(model.sample(text[: model.prefix], LENGTH, seed=0))),
    }
    times = {"native": native, "page": page(folder, text)}
    sizes = {"score": len(text), "sample": LENGTH}
    rates = {where: {what: sizes[what] / median(t) for what, t in of.items()} for where, of in times.items()}
    about = model.about
    assert about is not None
    record = {
        "run": about.run,
        "experts": about.experts,
        "width": about.width,
        "k": model.k,
        "device": device_name("cpu"),
        "bytes_per_processor_second": rates,
        "ratio": {what: rates["page"][what] / rates["native"][what] for what in sizes},
    }
    (HERE / "demo.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
