"""The gated model: counts, forward pass against a plain loop, separators, initialisation."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from soma.models import gru
from soma.models.gru_spec import GRUSpec, operations_per_token, rank_one_operations_per_token
from soma.numerics.rng import Stream

SPEC = GRUSpec(5, 2)
TOKENS = (Stream.named(0, "text").words(3 * 41).reshape(3, 41) % 256).astype(np.uint8)


def parameters(spec=SPEC, seed=0):
    """Draw every tensor at random, gains and biases included."""
    noise = torch.from_numpy(Stream.named(seed, "noise").normal(spec.size))
    return gru.initialise(spec, Stream.named(seed, "init")).double() + 0.3 * noise


@pytest.mark.parametrize(
    ("width", "count"), [(20, 39_540), (29, 76_125), (58, 273_354), (118, 1_065_894), (339, 8_456_355)]
)
def test_parameters_of_the_papers_baselines(width, count):
    spec = GRUSpec(width)
    assert spec.size == count == 72 * width**2 + 537 * width
    assert sum(slot.size for slot in spec.layout) == count


def test_operations():
    spec = GRUSpec(20)
    assert operations_per_token(spec) == 2 * (72 * 20**2 + 256 * 20)
    matrices = [s for s in spec.layout if len(s.shape) == 2 and s.name != "embedding"]
    assert operations_per_token(spec) == 2 * sum(s.size for s in matrices)
    assert rank_one_operations_per_token(spec) == 4 * (6 * 18 * 20 + 276) + 2 * 20


def test_initialisation():
    spec = GRUSpec(32)
    w = gru.tensors(spec, gru.initialise(spec, Stream.named(1, "init")))
    for name, tensor in w.items():
        if tensor.dim() == 2:
            assert tensor.mean().abs() < 5 / tensor.numel() ** 0.5, name
            assert abs(tensor.std() - 1) < 5 / (2 * tensor.numel()) ** 0.5, name
        else:
            assert (tensor == (0 if name.endswith("bias") else 1)).all(), name
    assert torch.equal(gru.initialise(spec, Stream.named(1, "init")), gru.initialise(spec, Stream.named(1, "init")))
    assert not torch.equal(w["blocks.0.gate_input"], w["blocks.1.gate_input"])


def by_hand(theta, window, nonlinearity, separator):
    """Compute one window byte by byte in numpy."""
    w = {name: tensor.numpy() for name, tensor in gru.tensors(SPEC, theta).items()}
    clips = nonlinearity == "clip"
    c = 127 / 16

    def clip(v):
        return np.clip(v, -c, c) if clips else v

    def product(name, v):
        return clip(w[name] @ v / np.sqrt(len(v)))

    def norm(name, v):
        return w[name] * v / np.abs(v).mean()

    h = np.zeros((SPEC.depth, SPEC.width))
    losses = []
    for byte, target in pairwise(window):
        if byte == separator:
            h[:] = 0
        x = w["embedding"][byte]
        for i in range(SPEC.depth):
            b = f"blocks.{i}."
            u = norm(b + "cell_norm", x)
            f = product(b + "gate_input", u) + product(b + "gate_hidden", h[i]) + w[b + "gate_bias"]
            g = (clip(f) / c + 1) / 2 if clips else 1 / (1 + np.exp(-f))
            k = product(b + "candidate_input", u) + product(b + "candidate_hidden", g * h[i]) + w[b + "candidate_bias"]
            h[i] += g * ((clip(k) if clips else np.tanh(k)) - h[i])
            x = x + h[i]
            x = x + product(b + "mlp_down", product(b + "mlp_up", norm(b + "mlp_norm", x)))
        logits = product("head", norm("norm", x))
        losses.append(np.log(np.exp(logits).sum()) - logits[target])
    return losses


@pytest.mark.parametrize("nonlinearity", ["clip", "sigmoid_tanh"])
@pytest.mark.parametrize("scale", [1.0, 6.0])  # at 6.0 the clips are active
def test_forward_is_the_equations(nonlinearity, scale):
    theta = scale * parameters()
    separator = int(TOKENS[1, 20])
    losses = gru.token_losses(SPEC, theta, TOKENS, nonlinearity=nonlinearity, separator=separator, rows=2)
    expected = [by_hand(theta, window, nonlinearity, separator) for window in TOKENS]
    assert losses.shape == (3, 40)
    assert losses.dtype == np.float64
    assert np.allclose(losses, expected, rtol=1e-11, atol=1e-11)


def test_float32_is_close_to_float64():
    theta = parameters()
    exact = gru.token_losses(SPEC, theta, TOKENS)
    assert np.abs(gru.token_losses(SPEC, theta.float(), TOKENS) - exact).max() < 1e-4


def test_a_silent_activation_is_not_divided_by_zero():
    assert np.allclose(gru.token_losses(SPEC, torch.zeros(SPEC.size), TOKENS), np.log(256))


def test_a_separator_starts_anew():
    theta, window = parameters(), TOKENS[:1].copy()
    window[0, 20] = 0
    window[0, :20] |= 1  # no other zero byte
    whole = gru.token_losses(SPEC, theta, window)
    tail = gru.token_losses(SPEC, theta, window[:, 20:])
    assert np.allclose(whole[:, 20:], tail, rtol=0, atol=1e-12)
    assert not np.allclose(gru.token_losses(SPEC, theta, window, separator=None)[:, 20:], tail)


def test_windows_do_not_see_each_other():
    theta = parameters()
    alone = np.concatenate([gru.token_losses(SPEC, theta, TOKENS[i : i + 1]) for i in range(3)])
    assert np.allclose(gru.token_losses(SPEC, theta, TOKENS), alone, rtol=0, atol=1e-12)
