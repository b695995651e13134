import numpy as np
import pytest

from soma.numerics.rng import Stream, philox4x32


def test_known_answers():
    """Vectors of the Random123 distribution (kat_vectors, philox4x32-10)."""
    ones = 0xFFFFFFFF
    cases = [
        ((0, 0, 0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ones,) * 4, (ones << 32) | ones, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0x299F31D0 << 32) | 0xA4093822,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ]
    for counter, key, expected in cases:
        assert " ".join(f"{int(w):08x}" for w in philox4x32(counter, key)) == expected


def test_numbers_do_not_depend_on_how_many_are_asked_for():
    stream = Stream.named(1, "probe")
    together = stream.words(37, direction=np.arange(5), update=9, expert=2)
    for d in range(5):
        assert np.array_equal(together[d], stream.words(37, direction=d, update=9, expert=2))
    assert np.array_equal(stream.words(11, update=3), stream.words(37, update=3)[:11])


def test_streams_and_addresses_differ():
    a = Stream.named(0, "arm", "probe")
    drawn = [
        a.words(8),
        Stream.named(1, "arm", "probe").words(8),
        Stream.named(0, "seed", "probe").words(8),
        a.words(8, direction=1),
        a.words(8, update=1),
        a.words(8, expert=1),
    ]
    assert len({w.tobytes() for w in drawn}) == len(drawn)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_uniform_is_uniform(n):
    u = Stream.named(0, "u").uniform(n, update=np.arange(20_000)).ravel()
    assert u.min() >= 0
    assert u.max() < 1
    # mean and variance of 20,000 n numbers, five standard errors
    assert abs(u.mean() - 0.5) < 5 * (1 / 12 / u.size) ** 0.5
    assert abs(u.var() - 1 / 12) < 5 * (1 / 180 / u.size) ** 0.5


def test_normal_has_unit_moments():
    z = Stream.named(0, "z").normal(100_000)
    assert abs(z.mean()) < 5 / 100_000**0.5
    assert abs(z.var() - 1) < 5 * (2 / 100_000) ** 0.5
    assert abs((z**4).mean() - 3) < 5 * (96 / 100_000) ** 0.5


def test_integers_and_permutation_cover_their_range():
    stream = Stream.named(0, "i")
    counts = np.bincount(stream.integers(70_000, 7), minlength=7)
    assert counts.min() > 9_500
    assert counts.max() < 10_500
    assert sorted(stream.permutation(100)) == list(range(100))
