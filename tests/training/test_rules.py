import numpy as np
import pytest
import torch

from soma.config.training import Plateau
from soma.training.adam import Adam
from soma.training.plateau import PlateauState, observe, scheduled


@pytest.mark.parametrize("decay", [0.0, 1e-4, 0.1])
def test_adam_is_torchs_adam_with_coupled_decay(decay):
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    theirs = torch.nn.Parameter(ours.clone())
    rule, m, v = Adam(0.9, 0.999, 1e-8, decay), torch.zeros_like(ours), torch.zeros_like(ours)
    optimiser = torch.optim.Adam([theirs], lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
    for update in range(1, 30):
        theirs.grad = torch.randn(2, 50, generator=generator, dtype=torch.float64)
        optimiser.step()
        rule.step(ours, theirs.grad, m, v, update, torch.tensor(0.01, dtype=torch.float64))
    assert torch.allclose(ours, theirs.detach(), rtol=1e-12, atol=1e-14)


def test_adam_takes_a_learning_rate_per_expert():
    weights, gradient = torch.zeros(2, 3), torch.ones(2, 3)
    Adam(0.9, 0.999, 1e-8, 0.0).step(
        weights, gradient, torch.zeros(2, 3), torch.zeros(2, 3), 1, torch.tensor([[0.1], [0.2]])
    )
    assert torch.allclose(weights, torch.tensor([[-0.1], [-0.2]]).expand(2, 3))


RULE = Plateau(patience=10, min_improvement=0.01, factor=0.5, floor=0.2, every=5)


def run(losses, rule=RULE):
    state, out = PlateauState(), []
    for i, loss in enumerate(losses, 1):
        state = observe(rule, state, i * rule.every, loss)
        out.append(scheduled(rule, state, 1.0))
    return out


def test_halves_after_patience_without_improvement_and_starts_counting_again():
    assert run([3, 3, 3, 3, 3, 3, 3]) == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.2]


def test_a_smaller_improvement_than_required_does_not_count():
    assert run([3, 2.995, 2.991])[-1] == 0.5
    assert run([3, 2.99, 2.98])[-1] == 1


def test_an_improvement_resets_the_patience():
    assert run([3, 3, 2, 2, 2]) == [1, 1, 1, 1, 0.5]


def test_the_floor_neither_raises_nor_is_passed():
    assert scheduled(RULE, PlateauState(scale=0.5**20), 1.0) == 0.2
    assert scheduled(RULE, PlateauState(), 0.1) == 0.1


def test_adam_rounds_every_operation_as_ieee_754_says():
    """Bit for bit what numpy gives; the square root of torch itself is MKL's, which is not rounded so."""
    generator = torch.Generator().manual_seed(0)
    weights, gradient, m = (torch.randn(1, 50_000, generator=generator) for _ in range(3))
    v = torch.rand(1, 50_000, generator=generator)
    f = np.float32
    w, g, first, second = (x.numpy().copy() for x in (weights, gradient, m, v))
    Adam(0.9, 0.999, 1e-8, 1e-4).step(weights, gradient, m, v, 7, torch.tensor([[0.01]]))
    g = g + f(1e-4) * w
    first = first * f(0.9) + f(1 - 0.9) * g
    second = second * f(0.999) + f(1 - 0.999) * (g * g)
    root = np.sqrt((second / f(1 - 0.999**7)).astype(np.float64)).astype(f)  # exact, then rounded once more
    w = w - f(0.01) * (first / f(1 - 0.9**7)) / (root + f(1e-8))
    for ours, theirs in ((m, first), (v, second), (weights, w)):
        np.testing.assert_array_equal(ours.numpy(), theirs)
