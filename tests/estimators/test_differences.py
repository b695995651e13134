"""The ways to take a slope along a direction: on polynomials with known slopes, on every engine, and what they cost."""

from typing import get_args

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from soma.config.training import FiniteDifference, Training
from soma.estimators import spsa
from soma.forward.probes import ProbeKind, Probes
from soma.forward.registry import create
from soma.models import lstm
from soma.models.count import spsa_forwards
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream
from soma.runs import operations_of
from tests.estimators.objectives import SPEC, G, M, estimate, linear

DIFFERENCES = get_args(FiniteDifference)
KINDS = get_args(ProbeKind)
DIAGONAL = np.random.default_rng(1).normal(size=M)
START = torch.from_numpy(np.random.default_rng(2).normal(size=(1, M)))


def quadratic(curvature):
    """0.5 sum_i a_i x_i^2 + G x with a = curvature times fixed numbers of either sign."""
    return lambda x: 0.5 * curvature * (DIAGONAL * x) @ x + G @ x


def cubic(x):
    return (x**3).sum() + (DIAGONAL * x) @ x + G @ x


def probe(kind, update=0):
    """The direction that `estimate` uses, [M]."""
    return Probes(SPEC, Stream.named(0, "probe"), kind, update, (0,), range(1)).vectors()[0, 0].astype(np.float64)


def slope(loss, difference, **options):
    """The coefficient D of one direction at START."""
    z = probe(options.get("kind", "dense"))
    gradient = estimate(loss, n_pert=1, theta=START, difference=difference, **options).gradient[0]
    assert np.allclose(gradient, gradient @ z / (z @ z) * z, rtol=1e-9, atol=1e-12)
    return gradient @ z / (z @ z)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [1.0, 1e-2])
@pytest.mark.parametrize("curvature", [1e-3, 1.0, -30.0])
def test_known_slopes_of_a_quadratic(kind, eps, curvature):
    """L(theta + s eps z) = L0 + s eps D + eps^2 z^T H z / 2."""
    z = probe(kind)
    second = curvature * (DIAGONAL * z) @ z
    exact = curvature * (DIAGONAL * START[0].numpy()) @ z + G @ z
    expected = {
        ("central", 1): exact,
        ("one-sided", 1): exact + eps * second / 2,
        ("alternating", 1): exact + eps * second / 2,
        ("alternating", -1): exact - eps * second / 2,
        ("curvature", 1): exact / max(abs(second) ** 0.1, 1),
    }
    assert (abs(second) > 1) == (abs(curvature) > 0.5)  # both sides of the floor of c
    for (difference, side), value in expected.items():
        measured = slope(quadratic(curvature), difference, kind=kind, eps=eps, side=side)
        assert measured == pytest.approx(value, rel=1e-8), (difference, side)


def test_order_of_the_error_on_a_cubic():
    """Halving eps divides the error of a central difference by four and of a one-sided one by two; both sides together
    are central again."""
    exact = (3 * START[0].numpy() ** 2 + 2 * DIAGONAL * START[0].numpy() + G) @ probe("dense")
    sides = {"central": (1,), "one-sided": (1,), "alternating": (1, -1)}
    for difference, ratio in (("central", 4), ("one-sided", 2), ("alternating", 4)):
        errors = [
            np.mean([slope(cubic, difference, eps=eps, side=side) for side in sides[difference]]) - exact
            for eps in (2e-2, 1e-2)
        ]
        assert errors[0] / errors[1] == pytest.approx(ratio, rel=1e-2), difference


@pytest.mark.parametrize("kind", KINDS)
def test_two_alternating_updates_are_one_central_one(kind):
    """At weights that have not moved: updates 6 and 7 use the directions of 3, with both signs."""
    turns = [spsa.turn("alternating", update) for update in (6, 7)]
    assert turns == [(3, 1), (3, -1)]
    both = [
        estimate(cubic, update=number, kind=kind, theta=START, difference="alternating", side=side).gradient
        for number, side in turns
    ]
    central = estimate(cubic, update=3, kind=kind, theta=START).gradient
    assert np.allclose(np.mean(both, axis=0), central, rtol=1e-9, atol=1e-9)
    assert not np.allclose(both[0], central, rtol=1e-3)


def test_only_alternating_updates_share_directions():
    for difference in set(DIFFERENCES) - {"alternating"}:
        assert [spsa.turn(difference, update) for update in (6, 7)] == [(6, 1), (7, 1)]


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_a_linear_loss_has_one_slope_whatever_the_difference(difference):
    """No curvature: nothing to be biased by, and c = 1."""
    central = estimate(linear, n_pert=3).gradient
    for side in (1, -1):
        gradient = estimate(linear, n_pert=3, difference=difference, side=side).gradient
        assert np.allclose(gradient, central, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_the_reported_loss_is_the_mean_of_those_evaluated(difference):
    seen = []

    def recorded(x):
        seen.append(cubic(x))
        return seen[-1]

    estimated = estimate(recorded, n_pert=3, theta=START, difference=difference, side=-1)
    assert len(seen) == spsa_forwards(3, difference)
    assert estimated.loss == pytest.approx([np.mean(seen)], rel=1e-12)


def test_summed_losses_enter_every_part_of_a_difference():
    rng = np.random.default_rng(3)
    losses, centre, eps = rng.normal(size=(3, 2, 2)), rng.normal(size=3), [0.1, 0.2, 0.3]
    total, middle, steps = losses.sum(axis=0), centre.sum(), np.array(eps)[:, None]
    one_sided = spsa.one_sided_differences(losses[..., 1:], centre, eps, -1, "summed")
    assert np.allclose(one_sided, (middle - total[:, 1]) / steps)
    c = (np.abs(total.sum(axis=1) - 2 * middle) / steps**2) ** 0.1
    scaled = spsa.curvature_scaled_differences(losses, centre, eps, "summed")
    assert (c > 1).any()
    assert np.allclose(scaled, (total[:, 0] - total[:, 1]) / (2 * steps) / np.maximum(c, 1))


@pytest.mark.parametrize("engine", ["torch", "auto"])
@pytest.mark.parametrize("kind", ["sparse", "gaussian"])
@pytest.mark.parametrize("loss", get_args(spsa.Loss))
def test_engines_agree_with_the_reference(engine, kind, loss):
    spec = LSTMSpec(8, 1, 8)
    theta, head = (
        torch.stack(x) for x in zip(*(lstm.initialise(spec, Stream.named(e, "i")) for e in range(2)), strict=True)
    )
    tokens = Stream.named(0, "t").integers(2 * 4 * 9, 256).astype(np.uint8).reshape(2, 4, 9)
    probes = Probes(spec, Stream.named(0, "p"), kind, 1, (0, 1), range(3))
    for difference in DIFFERENCES:
        arguments = (Experts(spec, theta, head), [tokens], [probes], [0.02, 0.01], loss, difference, -1)
        got, want = (spsa.estimate(create(name), *arguments) for name in (engine, "reference"))
        assert np.linalg.norm(got.gradient - want.gradient) < 2e-3 * np.linalg.norm(want.gradient), difference
        assert np.allclose(got.loss, want.loss, rtol=1e-6)


def test_operations_count_every_forward():
    per_forward = operations_of(Training(n_pert=1), 1) // 2
    forwards = {"central": 16, "one-sided": 9, "curvature": 17, "alternating": 9}
    for difference, n in forwards.items():
        settings = Training(n_pert=8, difference=difference, accumulation=3, experts=2)
        assert operations_of(settings, 5) == n * per_forward * 3 * 2 * 5


def test_settings_take_the_names_and_nothing_else():
    for difference in DIFFERENCES:
        for kind in KINDS:
            assert Training(difference=difference, probe=kind).difference == difference
    assert Training().difference == "central"
    for wrong in ({"difference": "two-sided"}, {"difference": None}, {"probe": "normal"}, {"signs": 1}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            Training.model_validate(wrong)
