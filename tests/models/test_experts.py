"""The value that every forward pass takes."""

import pytest
import torch

from soma.models.experts import Experts
from soma.models.spec import LSTMSpec

SPEC = LSTMSpec(4, 1, 4)
THETA, HEAD = torch.arange(3.0 * SPEC.size).view(3, -1), torch.arange(3.0 * SPEC.head_size).view(3, 256, 4)


def test_one_expert_and_some_are_views():
    experts = Experts(SPEC, THETA, HEAD)
    assert [len(experts), len(experts[1]), len(experts[1:])] == [3, 1, 2]
    assert torch.equal(experts[-1].theta, THETA[2:])
    assert torch.equal(experts[1:].head, HEAD[1:])
    assert experts[1].head.data_ptr() == HEAD[1].data_ptr()
    assert [int(one.theta[0, 0]) for one in experts] == [0, SPEC.size, 2 * SPEC.size]
    with pytest.raises(IndexError):
        experts[3]


def test_a_shared_head_is_held_and_counted_once():
    own, shared = Experts(SPEC, THETA, HEAD), Experts.of(SPEC, THETA, HEAD[:1])
    assert (own.shares_head, shared.shares_head, shared[0].shares_head) == (False, True, False)
    assert shared.head.shape == HEAD.shape
    assert shared.distinct_heads.shape == (1, 256, 4)
    assert own.parameters - shared.parameters == 2 * SPEC.head_size
    double = shared.to(torch.float64)
    assert double.shares_head
    assert double.theta.dtype == double.head.dtype == torch.float64
    copies = own[1].copies(THETA)
    assert copies.shares_head
    assert torch.equal(copies.head[2], HEAD[1])


def test_shapes_that_are_not_of_the_spec_are_refused():
    for theta, head in ((THETA[:, 1:], HEAD), (THETA, HEAD[:2]), (THETA, HEAD[:, :, 1:]), (THETA[0], HEAD)):
        with pytest.raises(ValueError, match=r"are not (3|268) experts of"):
            Experts.of(SPEC, theta, head)
