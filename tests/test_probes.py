import numpy as np
import pytest

from soma.forward.probes import Probes, combine, unpack
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

SPEC = LSTMSpec(8, 1, 8)


def probes(kind="sparse", *, update=0, experts=(0,), directions=range(16), seed=0):
    return Probes(SPEC, Stream.named(seed, "probe"), kind, update, tuple(experts), directions)


def test_a_gain_is_never_zero_and_half_of_the_weights_are():
    z = probes(directions=range(512)).signs()[0]
    assert set(np.unique(z)) == {-1, 0, 1}
    assert (z[:, SPEC.gains] != 0).all()
    share = (z[:, ~SPEC.gains] != 0).mean()
    count = 512 * (~SPEC.gains).sum()
    assert abs(share - 0.5) < 5 * 0.5 / count**0.5
    assert (probes("dense").signs() != 0).all()


def test_signs_are_balanced_and_coordinates_uncorrelated():
    z = probes("dense", directions=range(4096)).signs()[0].astype(np.float64)
    n, m = z.shape
    assert abs(z.mean()) < 5 / (n * m) ** 0.5
    correlation = z.T @ z / n - np.eye(m)
    assert np.abs(correlation).max() < 6 / n**0.5  # largest of 600,000 entries: about 5 standard errors


@pytest.mark.parametrize("kind", ["sparse", "dense", "gaussian"])
def test_directions_do_not_depend_on_who_asks(kind):
    all_ = probes(kind, experts=(0, 1, 2), directions=range(10))
    for e in range(3):
        alone = probes(kind, experts=(e,), directions=range(4, 7))
        assert np.array_equal(all_.vectors()[e, 4:7], alone.vectors()[0])
        assert all_.part(slice(e, e + 1), slice(4, 7)) == alone


@pytest.mark.parametrize("kind", ["sparse", "gaussian"])
@pytest.mark.parametrize("other", [{"update": 1}, {"experts": (1,)}, {"directions": range(16, 32)}, {"seed": 1}])
def test_no_two_addresses_share_a_direction(other, kind):
    assert not (probes(kind).vectors() == probes(kind, **other).vectors()).all(axis=2).any()


def test_gaussian_directions_are_standard_normal_and_those_of_the_stream():
    p = probes("gaussian", directions=range(2000), update=3, experts=(5,))
    z = p.normals()[0]
    assert z.dtype == np.float32
    assert np.array_equal(z[7], p.stream.normal(SPEC.size, direction=7, update=3, expert=5).astype(np.float32))
    z = z.astype(np.float64)
    n, m = z.shape
    for power, moment, spread in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
        assert abs((z**power).mean() - moment) < 4 * spread / (n * m) ** 0.5, power
    correlation = z.T @ z / n - np.eye(m)
    assert np.abs(correlation - np.diag(np.diag(correlation))).max() < 6 / n**0.5


def test_gaussian_directions_have_no_bits():
    with pytest.raises(ValueError, match="no bits"):
        probes("gaussian").packed()


def test_layout_of_the_packed_bits():
    """Coordinate i: words 0 and 1 of block i // 64 for i % 64 < 32, words 2 and 3 after; lowest bit first."""
    words = np.zeros((2, 4), np.uint32)
    words[0, 0] = 0b101  # coordinates 0 and 2 perturbed ...
    words[0, 1] = 0b100  # ... coordinate 2 negative
    words[1, 2] = 1 << 31  # coordinate 64 + 32 + 31
    z = unpack(words, 128)
    assert {i: int(z[i]) for i in np.flatnonzero(z)} == {0: 1, 2: -1, 127: 1}


@pytest.mark.parametrize("kind", ["sparse", "dense", "gaussian"])
def test_combine_is_the_sum_over_directions(kind):
    p = probes(kind, experts=(0, 3), directions=range(7))
    c = np.random.default_rng(0).normal(size=(2, 7))
    expected = np.einsum("ej,ejm->em", c, p.vectors().astype(np.float64))
    assert np.allclose(p.combine(c), expected, rtol=1e-13, atol=1e-13)
    if kind != "gaussian":
        assert np.array_equal(p.combine(c), combine(p.packed(), c, SPEC.size))
