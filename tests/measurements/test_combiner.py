"""A gate over experts: it finds a planted better one, and nothing where there is nothing."""

import numpy as np
import pytest
import torch

from soma.analysis import combiner as analysis
from soma.evaluation.ensemble import mixture_losses
from soma.measurements.combiner import DECAYS, gated_losses, learn, memories_of
from tests.analysis.invented import toy_plan
from tests.report.fabricated import Rows


def planted(kind, windows=48, experts=3, size=40, seed=0):
    """Losses [n, K, S] where one expert is good throughout a window: any one, always the second, or none."""
    generator = np.random.default_rng(seed)
    losses = 3 + generator.gamma(1, 0.2, (windows, 1, size)) + np.zeros((windows, experts, size))
    good = {"any": generator.integers(experts, size=windows), "second": np.ones(windows, int)}
    if kind in good:
        losses[np.arange(windows), good[kind]] -= 1.5
    return losses


def loss(gate, losses):
    return float(gated_losses(torch.from_numpy(gate), losses, memories_of(losses)).mean())


def test_a_gate_of_zeros_is_the_plain_mean_and_memory_is_of_the_past_alone():
    losses = planted("any")
    zero = torch.zeros(3 + len(DECAYS), dtype=torch.float64)
    found = gated_losses(zero, losses, memories_of(losses)).numpy()
    np.testing.assert_allclose(found, mixture_losses(losses), rtol=1e-12)
    changed = losses.copy()
    changed[:, :, 20:] += 1
    np.testing.assert_array_equal(memories_of(changed)[:, :, :21], memories_of(losses)[:, :, :21])
    np.testing.assert_allclose(memories_of(losses)[:, :, 5, 0], -losses[:, :, 4])
    np.testing.assert_allclose(memories_of(losses)[:, :, 5, -1], -losses[:, :, :5].sum(axis=2))


@pytest.mark.parametrize("method", ["spsa", "exact"])
@pytest.mark.parametrize("kind", ["any", "second"])
def test_a_planted_better_gate_is_found_on_fresh_windows(kind, method):
    losses, fresh = planted(kind), planted(kind, seed=1)
    gate = learn(losses, memories_of(losses), method, 0.05, 0.01, 8, 100, 0)
    best = fresh.min(axis=1).mean()
    mean = mixture_losses(fresh).mean()
    assert loss(gate, fresh) < best + 0.25 * (mean - best)
    assert np.array_equal(gate, learn(losses, memories_of(losses), method, 0.05, 0.01, 8, 100, 0))


@pytest.mark.parametrize("method", ["spsa", "exact"])
def test_experts_that_are_alike_leave_nothing_to_gain(method):
    losses = planted("none")
    gate = learn(losses, memories_of(losses), method, 0.05, 0.01, 8, 20, 0)
    assert loss(gate, losses) == pytest.approx(mixture_losses(losses).mean(), abs=1e-9)


def test_the_summary_compares_with_the_mean_and_charges():
    plan = toy_plan()
    found = analysis.compare(plan, Rows(plan).combiner()).set_index(["arm", "rule"])
    row, run = found.loc["soma-n2", "exact"], plan.arm_runs["soma-n2"][0]
    assert row["difference"] == pytest.approx(-0.02)
    assert row["share"] == pytest.approx(1e9 / run.operations(run.updates))
    assert np.isnan(found.loc[("soma-n2", "mean"), "difference"])
