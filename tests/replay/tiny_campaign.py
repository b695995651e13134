"""A tiny campaign on real text, run by the workflow's own steps without Snakemake."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np

from soma.config.data import Data, TextSource
from soma.config.routing import Routing
from soma.config.training import Training
from soma.data.download import download
from soma.data.encode import encode
from soma.data.sets import TestSet, ValidationSet, write_set
from soma.data.shards import build_shards
from soma.data.windows import TrainWindows
from soma.files.atomic import write_json
from soma.routing.features import Features, build_features, sample_ids, transform_part
from soma.routing.router import Router, assign_part, build_router
from soma.runs import RunSpec
from soma.steps.evaluate import evaluate
from soma.training.job import train_part
from tests.inference.tiny_model import article_texts, rows_of
from tests.training import small_runs

WINDOW, PREFIX, EXPERTS = 64, 24, 2
SETTINGS = small_runs.SETTINGS | {"plateau": {"every": 5, "patience": 10, "windows": 4}, "updates": 20}
EGGROLL = small_runs.EGGROLL | {"population": 16}


def _spec(name: str, kind: str, source: str | None, shards: str, leg: int | None = None, **changes: Any) -> RunSpec:
    settings = Training.model_validate(SETTINGS | changes)
    frozen = settings.head == "shared-frozen"
    return RunSpec(
        id=name, kind=kind, seed=0, start=source, head_from=source if frozen else None, shards=shards, window=WINDOW,
        settings=settings, milestones=(10, 20), leg=leg,
    )  # fmt: skip


_RANDOM = {"start": "random", "partition": "iid", "experts": 1}
SPECS = [
    _spec("seed-d8-s0", "seed", None, "iid-n1", **_RANDOM),
    _spec("soma-n2-s0", "arm", "seed-d8-s0", "clusters-n2", leg=12, experts=EXPERTS),
    _spec("frozen-n2-s0", "arm", "seed-d8-s0", "clusters-n2", experts=EXPERTS, head="shared-frozen"),
    _spec("bptt-n1-s0", "arm", "seed-d8-s0", "iid-n1", experts=1, partition="iid", method="bptt"),
    _spec("eggroll-n1-s0", "arm", None, "iid-n1", leg=12, method="eggroll", eggroll=EGGROLL, **_RANDOM),
]
PARTS = {spec.id: f"000-{spec.experts - 1:03d}" for spec in SPECS}


def make(results: Path, work: Path) -> None:
    """Run the campaign; `work` is a folder for temporary files."""
    _data(results, work)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for spec in SPECS:
        train(results, spec, work)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for role in ("validation", "test"):
        _evaluate(results, role, work)


def train(results: Path, spec: RunSpec, work: Path) -> None:
    """Train a run as the workflow does."""
    write_json(work / "run.json", spec.model_dump(mode="json"))
    write_json(work / "compute.json", {"save_every": 3600})
    part = PARTS[spec.id]
    arguments = {
        "settings": work / "run.json", "part": part, "train": results / "corpus/train",
        "shards": results / "shards" / spec.shards, "runs": results / "runs",
        "start": [Path(spec.start) / PARTS[spec.start]] if spec.start else [],
        "head": Path(spec.head_from) / PARTS[spec.head_from] if spec.head_from else None,
        "resume": work / "resume" / spec.id, "output": results / "runs" / spec.id / part,
        "compute": work / "compute.json", "threads": 1, "workers": 1, "nodes": 1,
    }  # fmt: skip
    train_part(**arguments)


def _data(results: Path, work: Path) -> None:
    """Write text, features, a router, shards and evaluation sets."""
    texts = article_texts(400)
    (work / "text").mkdir()
    (work / "text/articles.jsonl").write_text(
        "".join(json.dumps({"text": text.decode()}) + "\n" for text in texts[:300])
    )
    source = TextSource(source="text", path=str(work / "text"))
    download(source, work / "source")
    encode("train", Data(train=source), work / "source", results / "corpus/train")
    windows = TrainWindows(results / "corpus/train", WINDOW)
    routing = Routing(min_df=3, svd=8, sample=400, features=500)
    features = build_features(windows, routing, 0, results / "routing/features")
    transform_part(windows, features, work / "vectors.npy", workers=1)
    router = results / "routing/router-n2"
    build_router([work / "vectors.npy"], sample_ids(len(windows), routing, 0), features, EXPERTS, routing, 0, router)
    loaded = Router.load(router, Features.load(results / "routing/features"))
    assign_part(work / "vectors.npy", loaded, len(windows), work / "labels.npy")
    validation, labels = np.arange(len(windows)) % 8 == 0, np.load(work / "labels.npy", allow_pickle=False)
    build_shards("clusters", EXPERTS, windows, validation, 0, results / "shards/clusters-n2", labels)
    build_shards("iid", 1, windows, validation, 0, results / "shards/iid-n1")
    rows = rows_of(texts[300:], WINDOW + 1)
    for kind, own in ((ValidationSet, rows[:40]), (TestSet, rows[40:80])):
        n, nothing = len(own), np.full(len(own), "")
        documents = np.arange(n) // 4
        held = kind(own, documents, documents.astype(str), nothing, nothing, nothing, np.arange(n), prefix=PREFIX)
        write_set(held, results / f"sets/{kind.role}.parquet", {})


def _evaluate(results: Path, role: str, work: Path) -> None:
    """Write the losses of every run except the seed run, in one file."""
    entries = [
        {
            "run": spec.model_dump(mode="json"),
            "parts": [f"{spec.id}/{PARTS[spec.id]}"],
            "head": f"{spec.head_from}/{PARTS[spec.head_from]}" if spec.head_from else None,
            "active": [1, spec.experts] if spec.experts > 1 else [1],
        }
        for spec in SPECS[1:]
    ]
    write_json(work / "entries.json", entries)
    evaluate(
        work / "entries.json", role, results / f"sets/{role}.parquet", results / "runs", results / "routing",
        results / f"evaluation/{role}/all.parquet", work / "compute.json", threads=1,
    )  # fmt: skip
