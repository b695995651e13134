"""The counts of docs/paper.md, sections 3 and 5, hold exactly."""

import pytest

from soma.models.count import ensemble_parameters, operations_per_token, training_operations
from soma.models.spec import LSTMSpec


def test_parameters_of_the_papers_ensembles():
    assert ensemble_parameters(LSTMSpec(32), 256, shared_head=True) == 8_437_760
    assert ensemble_parameters(LSTMSpec(509), 1, shared_head=False) == 8_333_905
    assert ensemble_parameters(LSTMSpec(361), 2, shared_head=False) == 8_406_746
    assert ensemble_parameters(LSTMSpec(181), 8, shared_head=False) == 8_552_264


@pytest.mark.parametrize(("width", "depth", "embedding"), [(32, 2, 32), (16, 2, 32), (33, 3, 32), (8, 1, 8)])
def test_body_size_is_the_formula(width, depth, embedding):
    projections = 2 * embedding * width if width != embedding else 0
    spec = LSTMSpec(width, depth, embedding)
    assert spec.size == 16 * depth * width**2 + (2 * depth + 1) * width + projections
    assert spec.gains.sum() == (2 * depth + 1) * width


def test_operations_per_token():
    assert operations_per_token(LSTMSpec(32)) == 81_920


def test_operations_of_the_papers_continuations():
    """At width 32, 1,000 updates of N=4 take 2.75e15 operations (App. J), 512 updates of N=8 take 4.50e16 (Tab. 11)."""
    early = training_operations(
        LSTMSpec(32), forwards=2 * 64, batch=64, crop=1024, accumulation=1, experts=4, updates=1000
    )
    assert f"{early:.2e}" == "2.75e+15"
    allocations = [(64, 16), (256, 4), (1024, 1)]  # n_pert, accumulated batches of 64
    spent = {
        training_operations(LSTMSpec(32), forwards=2 * n, batch=64, crop=1024, accumulation=a, experts=8, updates=512)
        for n, a in allocations
    }
    assert len(spent) == 1
    assert f"{spent.pop():.2e}" == "4.50e+16"


def test_inference_ratio():
    """N=256 with k=4 needs 51.3 times less expert compute per token than N=2 with k=2."""
    ratio = 2 * operations_per_token(LSTMSpec(361)) / (4 * operations_per_token(LSTMSpec(32)))
    assert round(ratio, 1) == 51.3
