"""The routing steps in several jobs: cluster reports and shards have the same bytes for any number of parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from soma.config.data import Data, TextSource
from soma.config.routing import Routing
from soma.data.download import download
from soma.data.encode import encode
from soma.data.windows import TrainWindows
from soma.errors import SomaError
from soma.files.atomic import write_json
from soma.numerics.rng import Stream
from soma.routing.features import Features, build_features, sample_ids, transform_part
from soma.routing.router import build_router
from soma.steps.assign import assign
from soma.steps.describe_clusters import describe_clusters
from soma.steps.shard import shard

WINDOW, EXPERTS = 64, 3
SETTINGS = {"vectors": {}, "clusters": {"prefix": 32}, "shard": {"expert_validation": 0.2}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a text of four subjects, its features, a router and the settings of the steps."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text").mkdir()
    for i, n in enumerate(Stream.named(0, "text").integers(40 * 100, 50).reshape(40, 100)):
        words = " ".join(f"{('sea', 'law', 'war', 'tax')[i % 4]}{word}" for word in n)
        (folder / f"text/{i:02d}.txt").write_text(words)
    source = TextSource(source="text", path=str(folder / "text"))
    download(source, folder / "source")
    encode("train", Data(train=source), folder / "source", folder / "train")
    windows, routing = TrainWindows(folder / "train", WINDOW), Routing(min_df=1, svd=6, sample=200, features=150)
    features = build_features(windows, routing, 0, folder / "features")
    transform_part(windows, features, folder / "vectors.npy", workers=1)
    ids = sample_ids(len(windows), routing, 0)
    build_router([folder / "vectors.npy"], ids, features, EXPERTS, routing, 0, folder / "router")
    for name, own in SETTINGS.items():
        write_json(folder / f"{name}.json", {"seed": 0, "window": WINDOW} | own)
    return folder


def route(corpus: Path, parts: int, output: Path) -> list[Path]:
    """Run the steps after the router, those for parts in backward order; return the files of labels."""
    windows, features = TrainWindows(corpus / "train", WINDOW), Features.load(corpus / "features")
    fitted = {"train": corpus / "train", "features": corpus / "features", "router": corpus / "router"}
    names = [f"{i + 1}-of-{parts}" for i in range(parts)]
    labels = [output / f"labels-{name}.npy" for name in names]
    for name, file in reversed(list(zip(names, labels, strict=True))):
        vectors = output / f"vectors-{name}.npy"
        transform_part(windows, features, vectors, workers=1, part=name)
        assign(corpus / "vectors.json", **fitted, vectors=vectors, output=file, part=name)
    describe_clusters(corpus / "clusters.json", **fitted, labels=labels, output=output / "clusters.json")
    shard(corpus / "shard.json", corpus / "train", "clusters", EXPERTS, output / "shards", labels)
    return labels


@pytest.mark.parametrize("parts", [3, 7])
def test_any_number_of_parts_gives_the_same_report_and_shards(corpus: Path, tmp_path: Path, parts: int) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "more").mkdir()
    route(corpus, 1, tmp_path / "one")
    assert len(route(corpus, parts, tmp_path / "more")) == parts
    made = ("clusters.json", *(f"shards/{name}" for name in ("shards.json", "train.npy", "validation.npy", "text.bin")))
    for name in made:
        assert (tmp_path / "more" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name


def test_labels_of_another_number_of_windows_are_one_sentence(corpus: Path, tmp_path: Path) -> None:
    labels = route(corpus, 3, tmp_path)
    fitted = {"train": corpus / "train", "features": corpus / "features", "router": corpus / "router"}
    (tmp_path / "clusters.json").unlink()
    with pytest.raises(SomaError, match=r"The 2 file\(s\) of labels hold \d+ windows where .*train has \d+"):
        describe_clusters(corpus / "clusters.json", **fitted, labels=labels[:2], output=tmp_path / "clusters.json")
    with pytest.raises(SomaError, match="need one label below 3 per window"):
        shard(corpus / "shard.json", corpus / "train", "clusters", EXPERTS, tmp_path / "again", labels[1:])
    assert not (tmp_path / "clusters.json").exists()
    with pytest.raises(SomaError, match=r"vectors-1-of-3\.npy holds \d+ windows where the text has \d+"):
        assign(
            corpus / "vectors.json", **fitted, vectors=tmp_path / "vectors-1-of-3.npy", output=labels[0], part="1-of-2"
        )
