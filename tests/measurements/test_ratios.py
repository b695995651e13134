from types import SimpleNamespace

import numpy as np
import pytest
import torch

from soma.forward.probes import Probes
from soma.forward.reference import ReferenceEngine
from soma.forward.torch_engine import TorchEngine
from soma.measurements.gradients import exact_gradients
from soma.measurements.ratios import measure, states, variance_ratios
from soma.measurements.variance import activity
from soma.models.experts import Experts
from soma.numerics.rng import Stream
from tests.measurements.problem import SPEC, ensemble

DOUBLE = TorchEngine(torch.device("cpu"), torch.float64)


def test_against_both_estimates_one_probe_at_a_time():
    experts, tokens = ensemble(3, 3, 2, 9)
    (row,) = variance_ratios(experts, tokens, {"fp64": DOUBLE}, 1e-3, 6, 4, 5).to_dict("records")
    g, q = exact_gradients(experts, tokens), activity(SPEC, "sparse")
    expected = {"independent": [], "summed": []}
    for j in range(6):
        probes = Probes(SPEC, Stream.named(5, "ratios", "probe"), "sparse", 4, (0, 1, 2), range(j, j + 1))
        losses = ReferenceEngine().losses(experts, tokens, probes, [1e-3] * 3)[:, 0]
        slopes = (losses[:, 0] - losses[:, 1]) / 2e-3
        for rule, scale in (("independent", slopes), ("summed", np.full(3, slopes.sum()))):
            x = DOUBLE.combine(probes, scale[:, None])  # scale_e z_e
            expected[rule].append(((x - q * g) ** 2).sum() / (g**2).sum())
    for rule, values in expected.items():
        assert row[rule] == pytest.approx(np.mean(values), rel=1e-5)
    assert row["ratio"] == pytest.approx(np.mean(expected["summed"]) / np.mean(expected["independent"]), rel=1e-5)


@pytest.mark.parametrize("kind", ["sparse", "dense", "gaussian"])
def test_many_probes_come_to_the_prediction(kind):
    experts, tokens = ensemble(3, 3, 2, 9)
    (row,) = variance_ratios(experts, tokens, {"fp64": DOUBLE}, 1e-4, 4000, 0, 1, kind).to_dict("records")
    assert row["ratio"] == pytest.approx(row["predicted"], rel=0.05)
    assert 2 < row["predicted"] < 4.5  # not three, since the gradients' norms differ


def run(name, start, experts, kind="arm"):
    return SimpleNamespace(id=name, start=start, experts=experts, updates=20, model=SPEC, kind=kind)


def test_every_start_once_and_every_end():
    """Of a start with more experts the first are taken; one expert is copied; a frozen head is the run's own."""
    (many, _), (one, _), (end, _) = ensemble(4, 1, 2, heads=4), ensemble(1, 1, 2), ensemble(2, 1, 2)
    frozen = torch.full((256, SPEC.embedding), 7.0)

    def published(run, experts, head=None):
        return SimpleNamespace(run=run, experts=lambda: experts, shared_head=head)

    opened = {
        "a": published(run("a", "many", 2), end),
        "b": published(run("b", "many", 2), end),
        "c": published(run("c", "one", 2), end, frozen),
        "many": published(run("many", None, 4), many),
        "one": published(run("one", None, 1), one),
    }
    out = [*states(opened, {"a": "early", "b": "early", "c": "late"})]
    assert [(name, update, each.run.id) for name, update, _, each in out] == [
        ("start", 0, "a"), ("end", 20, "a"), ("end", 20, "b"), ("start", 0, "c"), ("end", 20, "c"),
    ]  # fmt: skip
    first, copied = out[0][2], out[3][2]
    assert torch.equal(first.theta, many.theta[:2])
    assert torch.equal(first.head, many.head[:2])
    assert isinstance(copied, Experts)
    assert torch.equal(copied.theta, one.theta.expand(2, -1))
    assert torch.equal(copied.distinct_heads, frozen[None])


def test_the_paired_runs_are_measured_on_training_text_in_both_precisions():
    runs = [run("a", "one", 2), run("b", "one", 2)]
    for each in runs:
        each.seed, each.settings = 3, SimpleNamespace(eps=1e-3, probe="sparse")
    (one, tokens), read = ensemble(1, 1, 2, 9), []

    def batch(run, expert, sequences, index, purpose, validation=False):
        read.append((run.id, expert, sequences, index, validation))
        return tokens[0]

    opened = [*runs, run("one", None, 1)]
    at = SimpleNamespace(
        settings={"phases": {"a": "early", "b": "early"}},
        product={"batches": 2, "batch": 5, "probes": 3},
        compute=SimpleNamespace(device="cpu"),
        engine=TorchEngine(torch.device("cpu")),
        batch=batch,
        opened=lambda: (
            SimpleNamespace(
                run=r, experts=lambda r=r: Experts.of(SPEC, one.theta.expand(r.experts, -1), one.head), shared_head=None
            )
            for r in opened
        ),
    )
    rows = measure(at)
    assert rows.groupby(["run", "state", "batch"])["precision"].agg(list).map(tuple).value_counts().to_dict() == {
        ("fp32 (torch)", "fp64"): 6
    }
    assert set(read) == {(r, e, 5, b, False) for r in "ab" for e in (0, 1) for b in (0, 1)}
    pairs = rows.pivot(index=["run", "state", "batch"], columns="precision", values="ratio")
    assert np.allclose(pairs["fp32 (torch)"], pairs["fp64"], rtol=1e-3)
