"""Golden tables of the toy campaign, and the machine that made them: `python -m tests.workflow.golden results/toy`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch

from soma.accounting.machine import device_name
from soma.files.hashes import sha256_file
from soma.forward.cpu import CpuEngine, available

FOLDER = Path(__file__).parent / "golden"
TABLES = (
    *("table1", "table2", "table4", "table5", "table6", "table7", "table9", "table10", "table11"),
    *("ablation", "clusters", "estimators", "precision", "rates", "rates-of-arms", "sizes"),
)
"""Tables without times of a machine."""


def machine() -> dict[str, str]:
    """Return what the last digits depend on: instruction set (the kernel), processor (torch's products) and torch."""
    isa = CpuEngine().isa if available() else "torch"
    return {"isa": isa, "processor": device_name("cpu"), "torch": torch.__version__}


def shards(results: Path) -> dict[str, str]:
    """Return the hash of each division of the training windows, which is torch's and scikit-learn's arithmetic."""
    return {path.parent.name: sha256_file(path) for path in sorted(results.glob("shards/*/shards.json"))}


def main(results: Path) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in TABLES:
        shutil.copy(results / f"tables/{name}.csv", FOLDER)
    (FOLDER / "machine.json").write_text(json.dumps(machine(), indent=1) + "\n")
    (FOLDER / "shards.json").write_text(json.dumps(shards(results), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
