from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from soma.estimators.bptt import gradient
from soma.estimators.spsa import estimate
from soma.forward.probes import Probes
from soma.forward.reference import ReferenceEngine
from soma.forward.torch_engine import TorchEngine
from soma.measurements import gradients
from soma.measurements.gradients import exact_gradients, sequence_gradients
from soma.measurements.variance import activity, ensemble_variance
from soma.numerics.rng import Stream
from tests.measurements.problem import SPEC, assert_near, ensemble

CPU = torch.device("cpu")
DOUBLE = TorchEngine(CPU, torch.float64)


@pytest.mark.parametrize("budget", [1, 1 << 26])
def test_gradients_in_pieces_are_those_of_the_whole_batch(budget, monkeypatch):
    monkeypatch.setattr(gradients, "_FLOATS", budget)
    experts, tokens = ensemble(3, 3, 5, 7)
    whole = gradient(experts.to(torch.float64), [tokens], "decoder")[0].numpy()
    assert np.allclose(exact_gradients(experts, tokens), whole, rtol=1e-11, atol=1e-14)
    single = sequence_gradients(experts[1], tokens[1])
    assert single.shape == (5, SPEC.size)
    assert np.allclose(single.mean(axis=0), whole[1], rtol=1e-11, atol=1e-14)
    alone = exact_gradients(experts[1], tokens[1:2, 3:4])[0]
    assert np.allclose(single[3], alone, rtol=1e-11, atol=1e-14)
    assert not experts.theta.requires_grad


def test_the_double_engine_is_the_reference_in_batches():
    experts, tokens = ensemble(2, 2, 3, 70, heads=2)
    probes = Probes(SPEC, Stream.named(0, "probe"), "sparse", 0, (0, 1), range(3))
    arguments = (experts, tokens)
    exact = ReferenceEngine().losses(*arguments, probes, [2**-10] * 2)  # a step that float32 represents exactly
    assert np.allclose(DOUBLE.losses(*arguments, probes, [2**-10] * 2), exact, rtol=1e-14)
    for what in ("token_losses", "hidden"):
        double, expected = (np.asarray(getattr(e, what)(*arguments)) for e in (DOUBLE, ReferenceEngine()))
        assert np.allclose(double, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_against_single_estimates_one_by_one(kind):
    experts, chunks = ensemble(3, 2, 3, 2, 9)
    engines = {"fp32": (TorchEngine(CPU), 8), "fp64": (ReferenceEngine(), 4)}
    rows = ensemble_variance(experts, chunks, engines, 1e-3, (1, 2, 4, 3), 5, kind)
    assert list(rows.chunk) == [0] * 8 + [1] * 8
    q = activity(SPEC, kind)
    for row in rows.itertuples():
        engine, count = engines[row.precision]
        exact, _, _ = gradient(experts.to(torch.float64), [chunks[row.chunk]], "full")
        g = exact.numpy()

        def errors(n, engine=engine, count=count, chunk=row.chunk, g=g):
            out = []
            for first in range(0, count, n):
                probes = Probes(
                    SPEC, Stream.named(5, "variance", "probe"), kind, chunk, (0, 1, 2), range(first, first + n)
                )
                x = estimate(engine, experts, [chunks[chunk]], [probes], [1e-3] * 3).gradient
                out.append(((x - q * g) ** 2).sum() / (g**2).sum())
            return np.array(out)

        single = errors(1)
        assert row.variance == pytest.approx(single.mean() / row.n_pert, rel=1e-9)
        assert row.variance_se == pytest.approx(single.std(ddof=1) / len(single) ** 0.5 / row.n_pert, rel=1e-9)
        if count % row.n_pert:
            assert np.isnan(row.grouped)
        else:
            assert row.grouped == pytest.approx(errors(row.n_pert).mean(), rel=1e-9)
        assert np.isnan(row.grouped_se) == (count % row.n_pert > 0 or count == row.n_pert)


@pytest.mark.parametrize("kind", ["sparse", "dense", "gaussian"])
def test_the_formula_of_section_6_and_one_over_n_pert(kind):
    """The mean is diag(q) g, and the error is measured from this mean."""
    experts, chunks = ensemble(3, 1, 3, 2, 9)
    rows = ensemble_variance(experts, chunks, {"fp64": (DOUBLE, 1600)}, 1e-3, (1, 4), 0, kind)
    for row in rows.itertuples():
        assert_near(row.variance, row.variance_se, row.predicted, f"n_pert = {row.n_pert}")
        assert_near(row.grouped, row.grouped_se, row.predicted, f"means of {row.n_pert}")
    if kind != "sparse":
        d = SPEC.size
        assert np.allclose(rows.predicted, (d - 1 if kind == "dense" else d + 1) / rows.n_pert, rtol=1e-12)


def test_repeatable_paired_and_indifferent_to_how_heads_are_given():
    experts, chunks = ensemble(2, 1, 2, 2, 9)
    engines = {"fp32": (TorchEngine(CPU), 6), "fp64": (DOUBLE, 6)}
    rows = ensemble_variance(experts, chunks, engines, 1e-2, (1,), 3)
    again = ensemble_variance(replace(experts, head=experts.head.contiguous()), chunks, engines, 1e-2, (1,), 3)
    pd.testing.assert_frame_equal(rows, again)
    assert rows.variance[0] != rows.variance[1]
    assert rows.variance[0] == pytest.approx(rows.variance[1], rel=1e-3)  # the same probes in both precisions
    other = ensemble_variance(experts, chunks, engines, 1e-2, (1,), 4)
    assert abs(other.variance[1] / rows.variance[1] - 1) > 1e-2
