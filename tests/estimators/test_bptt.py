import numpy as np
import pytest
import torch

from soma.estimators.bptt import gradient
from soma.estimators.head import decoder_gradient
from soma.forward.engine import create
from soma.models import lstm
from soma.models.spec import LSTMSpec
from soma.rng import Stream


def problem(width, experts=2):
    spec = LSTMSpec(width, 2, 8)
    pairs = [lstm.initialise(spec, Stream.named(e, "bptt")) for e in range(experts)]
    theta, head = (torch.stack(x).double() for x in zip(*pairs, strict=True))
    tokens = Stream.named(0, "bytes").integers(experts * 3 * 7, 256).astype(np.uint8).reshape(experts, 3, 7)
    return spec, theta, head, tokens


def loss(spec, theta, head, tokens):
    return create("reference").token_losses(spec, theta, head, tokens).mean(axis=(1, 2))


@pytest.mark.parametrize("width", [8, 5])
def test_gradient_is_that_of_finite_differences(width):
    spec, theta, head, tokens = problem(width)
    body, tied, losses = gradient(spec, theta, head, [tokens], "full")
    assert np.allclose(losses, loss(spec, theta, head, tokens), rtol=1e-14)
    eps = 1e-5
    for weights, grads in ((theta, body), (head, tied)):
        flat = weights.flatten(1)
        for index in np.linspace(0, flat.shape[1] - 1, 40).astype(int):
            saved = flat[:, index].clone()
            sides = []
            for sign in (1, -1):
                flat[:, index] = saved + sign * eps
                sides.append(loss(spec, theta, head, tokens))
            flat[:, index] = saved
            expected = (sides[0] - sides[1]) / (2 * eps)
            assert np.allclose(grads.flatten(1)[:, index].numpy(), expected, rtol=1e-5, atol=1e-9)


def test_the_forward_is_bit_for_bit_the_one_that_spsa_perturbs():
    spec, theta, head, tokens = problem(8)
    theta.requires_grad_()
    bytes_ = torch.from_numpy(tokens)
    hidden, _ = lstm.hidden(spec, theta, head, bytes_[:, :, :-1])
    losses = lstm.cross_entropy(hidden, head, bytes_[:, :, 1:]).detach().numpy()
    assert np.array_equal(losses, create("reference").token_losses(spec, theta.detach(), head, tokens))


def test_decoder_path_is_the_delta_rule():
    spec, theta, head, tokens = problem(8)
    _, tied, _ = gradient(spec, theta, head, [tokens], "decoder")
    hidden = create("reference").hidden(spec, theta, head, tokens)
    for e in range(2):
        expected = decoder_gradient(hidden[e].flatten(0, 1), head[e], torch.from_numpy(tokens[e, :, 1:]).flatten())
        assert torch.allclose(tied[e], expected, rtol=1e-10, atol=1e-14)


def test_accumulated_batches_are_averaged_and_weights_stay():
    spec, theta, head, tokens = problem(8)
    other = tokens[:, ::-1, ::-1].copy()
    before = theta.clone(), head.clone()
    both = gradient(spec, theta, head, [tokens, other], "full")
    one, two = (gradient(spec, theta, head, [t], "full") for t in (tokens, other))
    for b, x, y in zip(both[:2], one[:2], two[:2], strict=True):
        assert torch.allclose(b, (x + y) / 2, rtol=1e-12, atol=1e-15)
    assert torch.equal(theta, before[0])
    assert torch.equal(head, before[1])
    assert not theta.requires_grad
