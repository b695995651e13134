from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from routing_corpus import ArrayWindows, Made

from soma.errors import SomaError
from soma.files.arrays import read_parts
from soma.files.atomic import read_json
from soma.files.parts import range_of
from soma.numerics.rng import Stream
from soma.routing.features import build_features, open_vectors, sample_ids, transform_part
from soma.routing.router import Router, agreement, assign_part, build_router, describe

PREFIX = 128


def replaced(rows: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.uint8]:
    out = rows.copy()
    noise = Stream.named(0, "noise").integers(len(rows) * (stop - start), 256)
    out[:, start:stop] = noise.reshape(len(rows), -1)
    return out


def test_bytes_from_the_prefix_on_never_change_a_route(made: Made) -> None:
    rows = made.windows.rows
    route = made.router.route(rows, PREFIX, 7)
    np.testing.assert_array_equal(made.router.route(replaced(rows, PREFIX, 512), PREFIX, 7), route)
    np.testing.assert_array_equal(made.router.route(rows[:, :PREFIX], PREFIX, 7), route)
    np.testing.assert_array_equal(made.router.route(list(map(bytes, rows)), PREFIX, 7), route)
    # The check could fail: bytes before that position, or a longer prefix, do change routes.
    assert (made.router.route(replaced(rows, PREFIX - 64, PREFIX), PREFIX, 1) != route[:, :1]).any()
    assert (made.router.route(rows, 512, 1) != route[:, :1]).any()


def test_the_byte_after_the_prefix_cannot_complete_a_word_or_a_character(made: Made) -> None:
    window = made.windows.rows[0].tobytes()
    for end in (b"inter", "é".encode()[:1]):  # cut inside a word, inside a character
        head = window[: PREFIX - len(end)] + end
        tails = [b"national", "é".encode()[1:], b"\xa9lection", b" ", b""]
        scores = [made.router.route([head + tail], PREFIX, 7).tolist() for tail in tails]
        assert all(score == scores[0] for score in scores)


def test_route_is_the_ranking_of_similarities(made: Made) -> None:
    rows = made.windows.rows[:300]
    similarity = made.features.transform(rows[:, :PREFIX]).astype(float) @ made.router.centroids_KD.T.astype(float)
    route = made.router.route(rows, PREFIX, 4)
    assert route.shape == (300, 4)
    ranked = np.take_along_axis(similarity, route, axis=1)
    assert (np.diff(ranked, axis=1) <= 1e-6).all()
    np.testing.assert_allclose(ranked[:, 0], similarity.max(axis=1), atol=1e-6)
    np.testing.assert_allclose(ranked[:, 3], np.sort(similarity, axis=1)[:, -4], atol=1e-6)
    np.testing.assert_array_equal(made.router.route(rows, 512, 1)[:, 0], assigned(made)[:300])


def assigned(made: Made) -> NDArray[np.uint16]:
    return made.router.assign(made.features.transform(made.windows.rows))


def test_ties_go_to_the_lower_index(made: Made) -> None:
    twins = np.tile([3, 1], 20)
    router = replace(made.router, centroids_KD=made.router.centroids_KD[twins], prices_K=np.zeros(40, "f4"))
    order = np.unique(router.route(made.windows.rows[:100], PREFIX, 40), axis=0)
    even, odd = list(range(0, 40, 2)), list(range(1, 40, 2))
    assert order.tolist() == [even + odd, odd + even]
    assert set(router.assign(made.features.transform(made.windows.rows)).tolist()) == {0, 1}


@pytest.mark.parametrize("k", [0, 8])
def test_k_outside_the_experts_is_one_sentence(made: Made, k: int) -> None:
    with pytest.raises(SomaError, match=f"k = {k} .* between 1 and 7"):
        made.router.route(made.windows.rows[:2], PREFIX, k)


def test_the_first_experts_are_ranked_as_among_all(made: Made) -> None:
    rows = made.windows.rows[:100]
    whole, first = made.router.route(rows, PREFIX, 7), made.router.route(rows, PREFIX, 3, first=3)
    assert first.tolist() == [[e for e in order if e < 3] for order in whole.tolist()]
    with pytest.raises(SomaError, match=r"k = 4 .* between 1 and 3"):
        made.router.route(rows, PREFIX, 4, first=3)


def test_labels_do_not_depend_on_chunks(made: Made, tmp_path: Path) -> None:
    x_ND = open_vectors(made.vectors)
    labels = assigned(made)
    pieces = [made.router.assign(x_ND[a : a + 37]) for a in range(0, len(x_ND), 37)]
    np.testing.assert_array_equal(np.concatenate(pieces), labels)
    assign_part(made.vectors, made.router, len(x_ND), tmp_path / "labels.npy")
    stored = np.load(tmp_path / "labels.npy", allow_pickle=False)
    assert stored.dtype == np.uint16
    np.testing.assert_array_equal(stored, labels)


def test_nearest_and_priced(made: Made) -> None:
    x_ND = open_vectors(made.vectors)
    cosine = x_ND @ made.router.centroids_KD.T
    priced = replace(made.router, assignment="priced")
    np.testing.assert_array_equal(made.router.assign(x_ND), cosine.argmax(axis=1))
    np.testing.assert_array_equal(priced.assign(x_ND), (cosine - made.router.prices_K).argmax(axis=1))
    np.testing.assert_array_equal(priced.route(made.windows.rows, 512, 1)[:, 0], priced.assign(x_ND))
    assert (priced.assign(x_ND) != made.router.assign(x_ND)).any()
    spread = [np.ptp(np.bincount(r.assign(x_ND), minlength=7)) for r in (made.router, priced)]
    assert spread[1] < spread[0]


def test_clusters_follow_topics(made: Made, wiki: tuple[ArrayWindows, NDArray[np.str_]]) -> None:
    def purity(labels: NDArray[np.uint16]) -> float:
        _, topics = np.unique(wiki[1], return_inverse=True)
        table = np.zeros((7, topics.max() + 1))
        np.add.at(table, (labels, topics), 1)
        return float(table.max(axis=1).sum() / len(topics))

    labels = assigned(made)
    chance = purity(labels[Stream.named(0, "shuffle").permutation(len(labels))])
    assert purity(labels) > chance + 0.15


def test_describe_names_distinctive_words(made: Made) -> None:
    labels = assigned(made)
    clusters = describe(made.router, np.bincount(labels, minlength=7), terms=5)
    assert [c.balanced for c in clusters] == made.router.sizes_K.tolist()
    assert [c.assigned for c in clusters] == np.bincount(labels, minlength=7).tolist()
    text = [row.tobytes().decode(errors="ignore").lower() for row in made.windows.rows]
    for cluster in clusters:
        has = np.array([any(term in t for term in cluster.terms) for t in text])
        inside = labels == cluster.cluster
        assert len(cluster.terms) == 5
        assert has[inside].mean() > 2 * has[~inside].mean()


def test_agreement_is_counted_window_by_window(made: Made) -> None:
    rows = made.windows.rows[:200]
    full = assigned(made)[:200]
    expected = np.mean([made.router.route(rows[i : i + 1], PREFIX, 1)[0, 0] == full[i] for i in range(200)])
    assert agreement(made.router, rows, PREFIX) == expected
    assert 1 / 7 < expected < 1
    assert agreement(made.router, rows, 512) == 1


def test_the_record_counts_what_the_arrays_hold(made: Made) -> None:
    record = read_json(made.directory / "router" / "router.json")
    x_ND = open_vectors(made.vectors)[sample_ids(1500, made.settings, 0)]
    for assignment in ("nearest", "priced"):
        labels = replace(made.router, assignment=assignment).assign(x_ND)
        assert record["sizes"][assignment] == np.bincount(labels, minlength=7).tolist()
    assert record["sizes"]["balanced"] == made.router.sizes_K.tolist()
    assert set(record["sizes"]["balanced"]) == {171, 172}
    assert record["n"] == 7
    assert record["features"] == made.features.id


def test_fitting_again_gives_the_same_bytes(made: Made, tmp_path: Path) -> None:
    ids = sample_ids(1500, made.settings, 0)
    build_router([made.vectors], ids, made.features, 7, made.settings, 0, tmp_path / "r")
    for name in ("router.json", "router.npz"):
        assert (tmp_path / "r" / name).read_bytes() == (made.directory / "router" / name).read_bytes()


def test_loading_gives_the_same_router(made: Made) -> None:
    loaded = Router.load(made.directory / "router", made.features)
    assert loaded.centroids_KD.tobytes() == made.router.centroids_KD.tobytes()
    assert loaded.assignment == "nearest"
    np.testing.assert_array_equal(
        loaded.route(made.windows.rows[:50], PREFIX, 3), made.router.route(made.windows.rows[:50], PREFIX, 3)
    )


@pytest.mark.parametrize("name", ["router.npz", "router.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "altered", "foreign"])
def test_a_damaged_folder_is_refused(made: Made, tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "router"
    shutil.copytree(made.directory / "router", folder)
    data = (folder / name).read_bytes()
    if damage == "missing":
        (folder / name).unlink()
    elif damage == "truncated":
        (folder / name).write_bytes(data[: len(data) // 2])
    elif damage == "altered":
        at = data.index(b'"seed": 0') + 8 if name == "router.json" else len(data) // 2
        (folder / name).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    else:
        shutil.copy(made.directory / "features" / "features.json", folder / name)
    with pytest.raises(SomaError, match=name.replace(".", r"\.")):
        Router.load(folder, made.features)


def test_other_features_are_refused(made: Made, tmp_path: Path) -> None:
    other = build_features(made.windows, made.settings.model_copy(update={"svd": 8}), 0, tmp_path / "f")
    with pytest.raises(SomaError, match="fitted on other features"):
        Router.load(made.directory / "router", other)
    with pytest.raises(SomaError, match="48 dimensions but the features have 8"):
        build_router([made.vectors], np.arange(100), other, 2, made.settings, 0, tmp_path / "r")
    with pytest.raises(SomaError, match="48 dimensions but the features have 8"):
        assign_part(made.vectors, replace(made.router, features=other), 1500, tmp_path / "labels.npy")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_any_number_of_parts_gives_the_same_bytes(made: Made, tmp_path: Path, parts: int) -> None:
    names = [f"{i + 1}-of-{parts}" for i in range(parts)]
    files = [tmp_path / f"{name}.npy" for name in names]
    for name, file in reversed(list(zip(names, files, strict=True))):  # a part needs no other
        transform_part(made.windows, made.features, file, workers=1, part=name)
    whole = open_vectors(made.vectors)
    assert np.concatenate([open_vectors(file) for file in files]).tobytes() == whole.tobytes()
    assert [len(open_vectors(file)) for file in files] != [len(whole)] * parts or parts == 1

    ids = sample_ids(len(made.windows), made.settings, 0)
    build_router(files, ids, made.features, 7, made.settings, 0, tmp_path / "router")
    for name in ("router.json", "router.npz"):
        assert (tmp_path / "router" / name).read_bytes() == (made.directory / "router" / name).read_bytes()

    labels = [tmp_path / f"labels-{name}.npy" for name in names]
    for name, file, output in zip(names, files, labels, strict=True):
        assign_part(file, made.router, len(range_of(name, len(whole))), output)
    assert read_parts(labels, np.uint16).tobytes() == assigned(made).tobytes()


def test_a_missing_damaged_or_unknown_part_is_one_sentence(made: Made, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.npy" for i in (1, 2)]
    for i, file in enumerate(files, start=1):
        transform_part(made.windows, made.features, file, workers=1, part=f"{i}-of-2")
    ids = sample_ids(len(made.windows), made.settings, 0)
    with pytest.raises(SomaError, match=r"1\.npy ends before the sample of windows does"):
        build_router(files[:1], ids, made.features, 7, made.settings, 0, tmp_path / "r")
    data = bytearray(files[1].read_bytes())
    data[len(data) // 2] ^= 1
    files[1].write_bytes(data)
    with pytest.raises(SomaError, match=r"2\.npy does not have the values"):
        assign_part(files[1], made.router, len(made.windows) // 2, tmp_path / "labels.npy")
    half = len(open_vectors(files[0]))
    with pytest.raises(SomaError, match=rf"1\.npy holds {half} windows where the text has {half + 1}"):
        assign_part(files[0], made.router, half + 1, tmp_path / "labels.npy")
    assert not (tmp_path / "labels.npy").exists()
    for part in ("0-of-2", "3-of-2", "1-of-0", "x"):
        with pytest.raises(SomaError, match=f"`{part}` is no part of the training text"):
            transform_part(made.windows, made.features, tmp_path / "x.npy", workers=1, part=part)
