import numpy as np
import torch

from soma.evaluation.ensemble import lstm_losses, mixture_losses, selected_losses
from soma.forward.registry import create
from soma.models.experts import Experts
from soma.models.lstm import initialise
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

SPEC = LSTMSpec(8, 1, 8)
PREFIX, WINDOW = 5, 20
WINDOWS = np.random.default_rng(0).integers(0, 256, (7, WINDOW + 1)).astype(np.uint8)
DRAWN = zip(*(initialise(SPEC, Stream.named(s, "i")) for s in range(3)), strict=True)
EXPERTS = Experts(SPEC, *(torch.stack(t) for t in DRAWN))


def probabilities(expert):
    """Return p_e of every target of every window, from the reference engine."""
    losses = create("reference").token_losses(EXPERTS[expert], WINDOWS[None])
    return np.exp(-losses[0])


def test_mixture_is_the_mean_probability_of_the_selected_experts():
    selected = Stream.named(0, "s").permutation(3)[None, :2].repeat(7, axis=0)
    selected[3:] = [2, 0]
    losses = selected_losses(lstm_losses(create("reference"), EXPERTS), WINDOWS, selected, PREFIX)
    assert losses.shape == (7, 2, WINDOW - PREFIX)
    p = np.stack([probabilities(e) for e in range(3)])
    expected = -np.log(np.stack([p[selected[i], i].mean(axis=0) for i in range(7)])[:, PREFIX:])
    assert np.allclose(mixture_losses(losses), expected, rtol=1e-12)


def test_mixture_of_one_is_that_one_and_never_worse_than_the_worst():
    losses = np.random.default_rng(1).gamma(2, size=(5, 3, 4))
    assert np.allclose(mixture_losses(losses[:, :1]), losses[:, 0], rtol=1e-14)
    mixed = mixture_losses(losses)
    assert (mixed <= losses.max(axis=1)).all()
    assert (mixed <= losses.mean(axis=1) + 1e-12).all()  # -log is convex
    assert np.isfinite(mixture_losses(np.full((1, 2, 1), 800.0))).all()


def test_only_scored_bytes_count():
    """The loss at output position R belongs to byte R + 1; changing the last byte changes only the last loss."""
    selected = np.zeros((7, 1), int)
    before = selected_losses(lstm_losses(create("torch"), EXPERTS), WINDOWS, selected, PREFIX)
    changed = WINDOWS.copy()
    changed[:, -1] ^= 1
    after = selected_losses(lstm_losses(create("torch"), EXPERTS), changed, selected, PREFIX)
    assert np.array_equal(before[..., :-1], after[..., :-1])
    assert (before[..., -1] != after[..., -1]).all()


def test_a_shared_head_serves_all_experts():
    selected = np.array([[0, 1, 2]] * 7)
    head = EXPERTS.head[:1]
    both = Experts.of(SPEC, EXPERTS.theta, head), Experts(SPEC, EXPERTS.theta, head.repeat(3, 1, 1))
    shared, copies = (selected_losses(lstm_losses(create("torch"), e), WINDOWS, selected, PREFIX) for e in both)
    assert np.array_equal(shared, copies)
