"""The kernel of EGGROLL's members: against float64, and the same bytes however the work is divided or compiled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.compilers import COMPILERS, compiled

from soma.estimators.eggroll import Eggroll, read_streams
from soma.forward import members, native
from soma.forward.members import KernelMembers, TorchMembers
from soma.models import gru
from soma.models.gru_spec import GRUSpec
from soma.numerics.rng import Stream

INSTALLED = [isa for isa in native.INSTRUCTION_SETS if members.library(isa) is not None]
pytestmark = pytest.mark.skipif(not INSTALLED, reason="no kernel runs on this machine")
CPU = torch.device("cpu")
TEXT = (Stream.named(0, "text").words(4096) % 40).astype(np.uint8)  # every fortieth byte is a separator
TORCH = Eggroll(GRUSpec(13, 2), Stream.named(0, "eggroll"), population=76, streams=2, tokens=11, pair_chunk=64)


@pytest.fixture
def kernel():
    return replace(TORCH, engine=KernelMembers())


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def inputs(rule, size=0.3):
    """Parameters away from their special start, text, and states that are not zero."""
    noise = torch.from_numpy(Stream.named(0, "offset").normal(rule.spec.size)).float()
    theta = gru.initialise(rule.spec, Stream.named(0, "init")) + size * noise
    states = rule.initial_states()
    states += torch.from_numpy(Stream.named(0, "state").normal(states.numel())).view(states.shape)
    return theta, read_streams(TEXT, rule.streams, rule.tokens, 0), states


def same(a, b):
    return all(torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("update", [0, 7, 2**33 + 1])
def test_factors_are_those_of_torch(update):
    noise = TORCH.noise
    pairs = range(3, 60)
    expected = TorchMembers().factors(noise, pairs, update, CPU)
    assert torch.equal(KernelMembers().factors(noise, pairs, update, CPU), expected)


@pytest.mark.parametrize("nonlinearity", ["clip", "sigmoid_tanh"])
@pytest.mark.parametrize("state", ["carry", "reset", "pair_shared"])
@pytest.mark.parametrize("separator", [0, None])
@pytest.mark.parametrize("width", [5, 13, 32])
def test_losses_and_states_agree_with_float64(kernel, width, separator, state, nonlinearity):
    options = {"spec": GRUSpec(width, 2), "separator": separator, "state": state, "nonlinearity": nonlinearity}
    reference, kernel = replace(TORCH, **options), replace(kernel, **options)
    theta, tokens, states = inputs(reference)
    expected, after = reference.member_losses(theta.double(), tokens, states.double(), 3)
    got, got_after = kernel.member_losses(theta, tokens, states, 3)
    assert np.abs(got / expected - 1).max() < 1e-6
    assert got_after.shape == after.shape
    if state != "reset":
        assert (got_after - after).abs().max() < 2e-5


@pytest.mark.parametrize("nonlinearity", ["clip", "sigmoid_tanh"])
def test_token_losses_agree_with_float64(kernel, nonlinearity):
    kernel = replace(kernel, nonlinearity=nonlinearity)
    theta, _, _ = inputs(kernel)
    windows = TEXT[: 70 * 12].reshape(70, 12)
    expected = gru.token_losses(kernel.spec, theta.double(), windows, nonlinearity=nonlinearity)
    got = kernel.engine.token_losses(kernel.members, theta, windows)
    assert np.abs(got - expected).max() < 2e-5
    assert np.abs(got.sum() / expected.sum() - 1) < 1e-7


def test_large_logits_do_not_overflow(kernel):
    kernel = replace(kernel, nonlinearity="sigmoid_tanh")
    theta, tokens, states = inputs(kernel, size=0.0)
    theta[kernel.spec.layout[-1].offset :] *= 100
    expected, _ = replace(kernel, engine=TorchMembers()).member_losses(theta.double(), tokens, states.double(), 0)
    assert expected.max() / kernel.tokens > 90
    got, _ = kernel.member_losses(theta, tokens, states, 0)
    assert np.abs(got / expected - 1).max() < 1e-5


def test_a_parameter_that_is_not_a_number_gives_such_losses(kernel):
    theta, tokens, states = inputs(kernel)
    theta[kernel.spec.layout[-1].offset] = torch.nan
    assert np.isnan(kernel.member_losses(theta, tokens, states, 0)[0]).all()


@pytest.mark.parametrize("nonlinearity", ["clip", "sigmoid_tanh"])
@pytest.mark.parametrize("state", ["carry", "reset", "pair_shared"])
def test_any_division_of_the_work_gives_the_same_bytes(kernel, state, nonlinearity):
    kernel = replace(kernel, state=state, nonlinearity=nonlinearity)
    theta, tokens, states = inputs(kernel)
    torch.set_num_threads(1)
    whole = kernel.member_losses(theta, tokens, states, 3)
    updated = kernel.advance(theta, tokens, states, 3)[:2]
    for count, chunk in ((1, 1), (1, 7), (2, 64), (2, 16), (3, 38)):
        torch.set_num_threads(count)
        divided = replace(kernel, pair_chunk=chunk)
        assert same(divided.member_losses(theta, tokens, states, 3), whole), (count, chunk)
        assert same(divided.advance(theta, tokens, states, 3)[:2], updated), (count, chunk)
    ranges = (range(5), range(5, 31), range(31, 38))
    parts = [kernel.member_losses(theta, tokens, states[r.start : r.stop], 3, r) for r in ranges]
    assert np.array_equal(np.concatenate([losses for losses, _ in parts]), whole[0])
    if state != "reset":
        assert torch.equal(torch.cat([after for _, after in parts]), whole[1])


def everything(library):
    """Factors, losses, states and token losses of both nonlinearities."""
    out = []
    for nonlinearity in ("clip", "sigmoid_tanh"):
        rule = replace(TORCH, engine=KernelMembers(library), nonlinearity=nonlinearity)
        theta, tokens, states = inputs(rule)
        out += [rule.engine.factors(rule.noise, range(9), 1, CPU), *rule.member_losses(theta, tokens, states, 0)]
        out.append(rule.engine.token_losses(rule.members, theta, TEXT[:120].reshape(10, 12)))
    return out


def test_every_instruction_set_gives_the_same_bytes():
    first, *others = (everything(members.library(isa)) for isa in INSTALLED)
    assert all(same(first, other) for other in others)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_compiler_gives_the_same_bytes(compiler, tmp_path):
    expected = everything(members.library(INSTALLED[0]))
    for isa in INSTALLED[:2]:
        library = compiled(compiler, "soma.forward._members", "members.cpp", isa, tmp_path)
        assert same(everything(members.load(str(library))), expected), isa


def test_wrong_precision_is_refused(kernel):
    theta, tokens, states = inputs(kernel)
    with pytest.raises(ValueError, match="float32"):
        kernel.member_losses(theta.double(), tokens, states, 0)
