from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from routing_corpus import ArrayWindows, Made, to_rows
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from soma.config.routing import Routing
from soma.errors import SomaError
from soma.files.atomic import read_json
from soma.numerics.rng import Stream
from soma.routing.features import Features, build_features, open_vectors, sample_ids, transform_part


def test_equals_a_plain_scikit_learn_pipeline(made: Made) -> None:
    texts = [row.tobytes().decode("utf-8", errors="ignore") for row in made.windows.rows]
    sample = [texts[i] for i in sample_ids(len(texts), made.settings, 0)]
    tfidf = TfidfVectorizer(max_features=50_000, sublinear_tf=True, stop_words="english", min_df=3)
    svd = TruncatedSVD(48, random_state=Stream.named(0, "router", "svd").seed32())
    mean = svd.fit_transform(tfidf.fit_transform(sample)).mean(axis=0)
    expected = normalize(svd.transform(tfidf.transform(texts)) - mean)
    assert tuple(tfidf.get_feature_names_out()) == made.features.words
    np.testing.assert_allclose(made.features.transform(made.windows.rows), expected, atol=2e-5)


def test_rows_are_float32_unit_vectors(made: Made) -> None:
    x_ND = made.features.transform(made.windows.rows)
    assert x_ND.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(x_ND, axis=1), 1, atol=1e-6)


def test_a_row_depends_on_its_window_alone(made: Made) -> None:
    rows = made.windows.rows[:200]
    together = made.features.transform(rows)
    one_by_one = np.concatenate([made.features.transform(rows[i : i + 1]) for i in range(len(rows))])
    as_bytes = made.features.transform([row.tobytes() for row in rows[::-1]])[::-1]
    assert together.tobytes() == one_by_one.tobytes() == as_bytes.tobytes()


def test_streaming_is_independent_of_workers_and_chunks(made: Made, tmp_path: Path) -> None:
    transform_part(made.windows, made.features, tmp_path / "a.npy", workers=2, chunk=101)
    assert (tmp_path / "a.npy").read_bytes() == made.vectors.read_bytes()
    np.testing.assert_array_equal(open_vectors(made.vectors), made.features.transform(made.windows.rows))


def test_fitting_again_gives_the_same_bytes(made: Made, tmp_path: Path) -> None:
    with threadpool_limits(2):
        again = build_features(made.windows, made.settings, 0, tmp_path / "f")
    assert again.id == made.features.id
    other_seed = build_features(made.windows, made.settings, 1, tmp_path / "g")
    assert other_seed.id != made.features.id


def test_invalid_utf8_is_dropped_and_windows_without_words_are_blank(made: Made, tmp_path: Path) -> None:
    word = made.features.words[len(made.features.words) // 2].encode()
    texts = [b"", b"\xff\xfe\x80", b"the of and", b"qqqxyzzy", word, b"\xff" + word[:2] + b"\xc3" + word[2:]]
    x_ND = made.features.transform(texts)
    np.testing.assert_array_equal(x_ND[:4], np.tile(made.features.blank_D, (4, 1)))
    np.testing.assert_array_equal(x_ND[4], x_ND[5])
    assert not np.array_equal(x_ND[4], made.features.blank_D)
    mean = made.features.mean_D.astype(float)
    np.testing.assert_allclose(made.features.blank_D, -mean / np.linalg.norm(mean), atol=1e-6)
    assert made.features.count_blank(x_ND) == 4
    assert transform_part(ArrayWindows(to_rows(texts)), made.features, tmp_path / "x.npy", workers=1) == 4


def test_blank_windows_of_the_sample_are_recorded(tmp_path: Path) -> None:
    texts = [b"alpha beta", b"beta gamma", b"alpha gamma", b"...", b"beta alpha"] * 2
    build_features(ArrayWindows(to_rows(texts)), Routing(min_df=2), 0, tmp_path / "f")
    record = read_json(tmp_path / "f" / "features.json")
    assert record["blank_in_sample"] == 2
    # Three words cannot span 128 dimensions, so fewer are kept; the manifest records both numbers.
    assert (record["dims"], record["words"], record["settings"]["svd"]) == (2, 3, 128)


@pytest.mark.parametrize("texts", [[], [b""] * 9, [b"lonely"] * 9, [b"every word differs", b"nothing repeats"]])
def test_too_small_a_vocabulary_is_one_sentence(texts: list[bytes], tmp_path: Path) -> None:
    rows = to_rows(texts) if texts else np.empty((0, 512), np.uint8)
    with pytest.raises(SomaError, match=r"routing\.min_df = 2 .* lower routing\.min_df"):
        build_features(ArrayWindows(rows), Routing(min_df=2), 0, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("n", "sample"), [(0, 5), (5, 5), (5, 9), (1000, 7), (1000, 999), (97_700_000, 400)])
def test_the_sample_is_sorted_distinct_and_spread(n: int, sample: int) -> None:
    ids = sample_ids(n, Routing(sample=sample), 3)
    assert len(ids) == min(n, sample)
    assert (np.diff(ids) > 0).all()
    assert ((ids >= 0) & (ids < n)).all()
    if n > 10 * sample:
        assert np.abs(ids / n - (np.arange(sample) + 0.5) / sample).max() <= 0.5 / sample + 1 / n
        assert not np.array_equal(ids, sample_ids(n, Routing(sample=sample), 4))


def test_loading_gives_the_same_features(made: Made) -> None:
    loaded = Features.load(made.directory / "features")
    rows = made.windows.rows[:50]
    assert loaded.transform(rows).tobytes() == made.features.transform(rows).tobytes()


@pytest.mark.parametrize("name", ["features.npz", "vocabulary.json", "features.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "altered", "foreign"])
def test_a_damaged_folder_is_refused(made: Made, tmp_path: Path, name: str, damage: str) -> None:
    folder = tmp_path / "features"
    shutil.copytree(made.directory / "features", folder)
    data = (folder / name).read_bytes()
    if damage == "missing":
        (folder / name).unlink()
    elif damage == "truncated":
        (folder / name).write_bytes(data[: len(data) // 2])
    elif damage == "altered":
        at = data.index(b'"seed": 0') + 8 if name == "features.json" else len(data) // 2
        (folder / name).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    else:
        shutil.copy(made.directory / "router" / "router.json", folder / name)
    with pytest.raises(SomaError, match=name.replace(".", r"\.")):
        Features.load(folder)


def test_damaged_vectors_are_refused(made: Made, tmp_path: Path) -> None:
    whole = made.vectors.read_bytes()
    for data in (whole[:-4], whole[:5], b"", b"hello"):
        (tmp_path / "v.npy").write_bytes(data)
        with pytest.raises(SomaError, match="damaged"):
            open_vectors(tmp_path / "v.npy")
    np.save(tmp_path / "v.npy", np.zeros((3, 3)))
    with pytest.raises(SomaError, match="not an array of float32 with 2 dimension"):
        open_vectors(tmp_path / "v.npy")
    with pytest.raises(SomaError, match="missing"):
        open_vectors(tmp_path / "w.npy")
