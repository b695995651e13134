import pytest
import torch

from soma.forward import head as module
from soma.forward.head import decoder_gradient


@pytest.mark.parametrize("rows", [1, 37, 8192])
def test_delta_rule_is_the_gradient_with_hidden_states_detached(rows, monkeypatch):
    monkeypatch.setattr(module, "_ROWS", rows)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(100, 32, generator=generator, dtype=torch.float64)
    head = torch.randn(256, 32, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(256, (100,), generator=generator)
    torch.nn.functional.cross_entropy(hidden @ head.T, targets).backward()
    assert torch.allclose(decoder_gradient(hidden, head.detach(), targets), head.grad, rtol=1e-12, atol=1e-15)


def test_following_it_fits_the_head():
    generator = torch.Generator().manual_seed(0)
    hidden, targets = torch.randn(64, 32, generator=generator), torch.randint(256, (64,), generator=generator)
    head = torch.zeros(256, 32)
    for _ in range(200):
        head -= 10 * decoder_gradient(hidden, head, targets)
    assert torch.nn.functional.cross_entropy(hidden @ head.T, targets) < 0.5
