"""Probes and their combination in C++ against soma.forward.probes, bit for bit."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import KERNELS, make_case

from soma.forward.probes import combine
from soma.numerics.rng import Stream

pytestmark = pytest.mark.parametrize("name", KERNELS)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("width", [8, 32, 33])
def test_packed_and_combined(width, kind, name, make_engine):
    case = make_case(width, experts=3, directions=4, kind=kind)
    probes = replace(case.probes, experts=(5, 0, 255), update=2**31 + 3, stream=Stream(2**64 - 3))
    engine = make_engine(name)
    packed = probes.packed()
    np.testing.assert_array_equal(engine.packed(probes), packed)
    coefficients = np.random.default_rng(0).normal(size=(3, 4))
    want = combine(packed, coefficients, case.spec.size)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        np.testing.assert_array_equal(engine.combine(probes, coefficients), want)


def test_gaussian_directions_are_combined_to_the_same_bits(name, make_engine):
    case = make_case(33, experts=3, directions=4, kind="gaussian")
    engine, coefficients = make_engine(name), np.random.default_rng(0).normal(size=(3, 4))
    want = make_engine("reference").combine(case.probes, coefficients)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        np.testing.assert_array_equal(engine.combine(case.probes, coefficients), want)
    with pytest.raises(ValueError, match="no bits"):
        engine.packed(case.probes)


def test_directions_in_any_order(name, make_engine):
    probes = replace(make_case(16).probes, directions=range(9, 2, -3))
    np.testing.assert_array_equal(make_engine(name).packed(probes), probes.packed())


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers_of_philox(counter, key, words, name, make_engine):
    """The vectors that Random123 publishes for philox4x32-10."""
    out = (ctypes.c_uint32 * 4)()
    make_engine(name)._library.soma_philox((ctypes.c_uint32 * 4)(*counter), ctypes.c_uint64(key), out)
    assert " ".join(f"{w:08x}" for w in out) == words


def test_coefficients_must_match(name, make_engine):
    probes = make_case(16).probes
    with pytest.raises(ValueError, match=r"float64 \(2, 2\)"):
        make_engine(name).combine(probes, np.zeros((2, 3)))
    with pytest.raises(ValueError, match="float32"):
        make_engine(name).combine(probes, np.zeros((2, 2), dtype=np.float32))
