"""The functional expert against the modules of torch.nn, in float64."""

from __future__ import annotations

import pytest
import torch
from cases import make_case
from torch import Tensor, nn

from soma.models import lstm
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec


class Expert(nn.Module):
    """The expert of docs/paper.md section 3 in the words of torch.nn; bias-free LayerNorms with a gain."""

    def __init__(self, spec: LSTMSpec, theta: Tensor, head: Tensor) -> None:
        super().__init__()
        d, h = spec.width, spec.embedding
        self.project_in = nn.Linear(h, d, bias=False) if spec.projected else nn.Identity()
        self.lstm_norm, self.lstm, self.mlp_norm, self.up, self.down = (nn.ModuleList() for _ in range(5))
        for _ in range(spec.depth):
            self.lstm_norm.append(nn.LayerNorm(d, bias=False))
            self.lstm.append(nn.LSTM(d, d, bias=False, batch_first=True))
            self.mlp_norm.append(nn.LayerNorm(d, bias=False))
            self.up.append(nn.Linear(d, 4 * d, bias=False))
            self.down.append(nn.Linear(4 * d, d, bias=False))
        self.norm = nn.LayerNorm(d, bias=False)
        self.project_out = nn.Linear(d, h, bias=False) if spec.projected else nn.Identity()
        self.embedding = nn.Embedding.from_pretrained(head)
        self.double()
        self._load(spec, theta.double())

    def _load(self, spec: LSTMSpec, theta: Tensor) -> None:
        """Takes the parameters off the front of the flat vector in the documented order."""
        order: list[Tensor] = []
        if spec.projected:
            order.append(self.project_in.weight)
        for i in range(spec.depth):
            order += [self.lstm_norm[i].weight, self.lstm[i].weight_ih_l0, self.lstm[i].weight_hh_l0]
            order += [self.mlp_norm[i].weight, self.up[i].weight, self.down[i].weight]
        order.append(self.norm.weight)
        if spec.projected:
            order.append(self.project_out.weight)
        assert sum(p.numel() for p in order) == theta.numel() == spec.size
        with torch.no_grad():
            for parameter, flat in zip(order, theta.split([p.numel() for p in order]), strict=True):
                parameter.copy_(flat.view_as(parameter))

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.project_in(self.embedding(inputs))
        for norm, recurrent, mlp_norm, up, down in zip(
            self.lstm_norm, self.lstm, self.mlp_norm, self.up, self.down, strict=True
        ):
            x = x + recurrent(norm(x))[0]
            x = x + down(nn.functional.gelu(up(mlp_norm(x))))
        return self.project_out(self.norm(x))


@pytest.mark.parametrize(("width", "depth", "embedding"), [(32, 2, 32), (8, 2, 32), (33, 3, 32), (12, 1, 12)])
def test_functional_expert_equals_modules(width, depth, embedding):
    case = make_case(width, depth=depth, embedding=embedding, time=11)
    inputs = torch.from_numpy(case.tokens[..., :-1]).long()
    targets = torch.from_numpy(case.tokens[..., 1:]).long()
    theta = case.theta.double() + 0.1 * torch.randn(case.theta.shape, generator=torch.Generator().manual_seed(0))
    head = case.head.double()
    got, _ = lstm.hidden(Experts(case.spec, theta, head), inputs)
    losses = lstm.cross_entropy(got, head, targets)
    for e in range(2):
        with torch.no_grad():
            want = Expert(case.spec, theta[e], head[e])(inputs[e])
        torch.testing.assert_close(got[e], want, rtol=1e-12, atol=1e-12)
        logits = want @ head[e].T
        want_losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets[e].flatten(), reduction="none")
        torch.testing.assert_close(losses[e].flatten(), want_losses, rtol=1e-12, atol=1e-12)


def test_state_carries_over_a_cut():
    case = make_case(16, time=10)
    inputs = torch.from_numpy(case.tokens[..., :-1])
    whole, _ = lstm.hidden(case.experts, inputs)
    first, state = lstm.hidden(case.experts, inputs[..., :4])
    second, _ = lstm.hidden(case.experts, inputs[..., 4:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=2), whole, rtol=1e-5, atol=1e-6)
