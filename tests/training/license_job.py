"""A training job on a small text, as a command: two experts on the license of this repository."""

import json
import shutil
from pathlib import Path

import numpy as np

from soma.config.data import Data, TextSource
from soma.data.download import download
from soma.data.encode import encode
from soma.data.shards import build_shards
from soma.data.windows import TrainWindows
from soma.files.hashes import sha256_file
from tests.project import ROOT
from tests.training import forks
from tests.training.small_runs import WINDOW, spec

SAME = ("weights.safetensors", "milestones.safetensors", "leg.safetensors", "history.parquet")
"""Files that are the same bytes however often the job was stopped."""


class Job:
    """One job in a folder, which saves after every update; every start is a copy of this process."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.output, self.resume, self.log = folder / "out", folder / "resume", folder / "log"
        self.state = self.resume / "state.safetensors"
        self.words = ["train", "--part", "000-001", "--threads", "1", "--log", str(self.log)]
        for name in ("settings", "compute"):
            self.words += [f"--{name}", str(data / f"{name}.json")]
        for name in ("train", "shards"):
            self.words += [f"--{name}", str(data / name)]
        self.words += ["--runs", str(folder), "--resume", str(self.resume), "--output", str(self.output)]

    def start(self) -> int:
        return forks.start(self.words)

    def run(self) -> int:
        """The exit status; -9 of one that was killed."""
        return forks.status(self.start())

    def left(self) -> set[str]:
        """What a run leaves in its folder of resume states."""
        return {path.name for path in self.resume.iterdir()}

    def digests(self) -> dict[str, str]:
        return {name: sha256_file(self.output / name) for name in SAME}


def write_inputs(folder: Path, updates: int = 30) -> Path:
    """Write everything that a job reads, and return the folder."""
    (folder / "text").mkdir()
    shutil.copy(ROOT / "LICENSE", folder / "text/license.txt")
    source = TextSource(source="text", path=str(folder / "text"))
    download(source, folder / "source")
    encode("train", Data(train=source), folder / "source", folder / "train")
    corpus = TrainWindows(folder / "train", WINDOW)
    ids = np.arange(len(corpus))
    build_shards("clusters", 2, corpus, ids % 4 < 2, 0, folder / "shards", (ids % 2).astype(np.uint16))
    (folder / "settings.json").write_text(spec(updates=updates, leg=12).model_dump_json())
    (folder / "compute.json").write_text(json.dumps({"save_every": 1e-9}))
    return folder
