import numpy as np
import pytest
import torch

from soma.forward.precision import PRECISIONS, round_mantissa, rounded_products
from soma.forward.probes import Probes
from soma.forward.registry import create
from soma.forward.torch_engine import TorchEngine
from soma.measurements.precision import difference_errors
from soma.models.experts import Experts
from soma.models.lstm import initialise
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream


def test_rounding_to_bfloat16_is_torchs():
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 100
    assert torch.equal(round_mantissa(x, 7), x.bfloat16().float())
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8])
    assert torch.equal(round_mantissa(ties, 7), ties.bfloat16().float())


@pytest.mark.parametrize(("precision", "bits"), [("tf32", 10), ("bf16", 7)])
def test_every_product_of_the_model_is_rounded(precision, bits):
    """With operands that are representable already, nothing changes; with others, every layer's output does."""
    a = round_mantissa(torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), bits)
    b = round_mantissa(torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), bits)
    with rounded_products(precision):
        assert torch.equal(a @ b, torch.matmul(a, b))
        exact = a @ b
        changed = (a + 1e-5) @ b
    assert torch.equal(exact, a @ b)
    assert torch.equal(changed, exact)
    assert not torch.equal((a + 1e-5) @ b, exact)


def test_errors_are_ordered_as_the_formats_are_and_grow_as_eps_falls():
    spec = LSTMSpec(16)
    body, head = initialise(spec, Stream.named(0, "i"))
    tokens = Stream.named(0, "t").integers(8 * 33, 256).astype(np.uint8).reshape(8, 33)
    probes = Probes(spec, Stream.named(0, "p"), "sparse", 0, (0,), range(8))
    rows = difference_errors(
        {"initial": Experts(spec, body[None], head[None])},
        tokens,
        probes,
        [1e-2, 1e-3, 1e-4],
        create("auto"),
        TorchEngine(torch.device("cpu")),
    )
    table = rows.pivot_table(index="eps", columns="precision", values="error")
    at = table.loc[1e-3]
    assert at["fp32"] < 2e-4
    assert at["fp32"] < at["bf16x3 (emulated)"] < at["tf32 (emulated)"] < at["bf16 (emulated)"]
    assert at["tf32x3 (emulated)"] < 0.1 * at["tf32 (emulated)"]
    assert at["tf32 (emulated)"] > 2e-3
    assert (table.loc[1e-4] > table.loc[1e-2]).all()
    assert len(rows) == 3 * (len(PRECISIONS) + 1)
