"""The check of an engine on a new machine: it passes every engine, and fails one that is slightly off."""

import pytest
import torch

from soma.errors import SomaError
from soma.forward import check
from soma.forward.reference import ReferenceEngine
from soma.models.experts import Experts


@pytest.mark.parametrize("name", ["auto", "torch"])
def test_engines_agree_with_the_reference(name):
    errors = check.check_engine(name, "cpu")
    assert list(errors) == [size.width for size in check.CHECKED]
    assert all(0 < error <= 2e-4 for error in errors.values())


class Rounded(ReferenceEngine):
    """Rounds weights as TF32 does, to ten bits after the first."""

    name = "rounded"

    def hidden(self, experts, tokens):
        theta = experts.theta.float().view(dtype=torch.int32) + (1 << 12) & ~((1 << 13) - 1)
        return super().hidden(Experts(experts.spec, theta.view(dtype=torch.float32), experts.head), tokens)


class Combined(ReferenceEngine):
    """Combines in another order."""

    def combine(self, probes, coefficients):
        return super().combine(probes, coefficients) * (1 + 2e-16)


@pytest.mark.parametrize("wrong", [Rounded, Combined])
def test_what_is_not_quite_right_fails(wrong, monkeypatch):
    monkeypatch.setattr(check, "create", lambda name, device: wrong())
    with pytest.raises(SomaError, match="does not agree with the reference at width 32 "):
        check.check_engine("auto", "cpu")


def test_an_engine_that_is_not_here_is_said():
    with pytest.raises(SomaError, match="triton, which needs a CUDA device"):
        check.check_engine("triton", "cpu")
