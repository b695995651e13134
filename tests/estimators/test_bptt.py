import subprocess
import sys

import numpy as np
import pytest
import torch

from soma.config.training import Training
from soma.estimators import bptt
from soma.estimators.bptt import gradient
from soma.forward.head import decoder_gradient
from soma.forward.registry import create
from soma.forward.torch_engine import TorchEngine
from soma.models import lstm
from soma.models.count import operations_per_token
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream
from soma.runs import operations_of
from tests.estimators.watch import Watch


def problem(width, experts=2):
    spec = LSTMSpec(width, 2, 8)
    pairs = [lstm.initialise(spec, Stream.named(e, "bptt")) for e in range(experts)]
    theta, head = (torch.stack(x).double() for x in zip(*pairs, strict=True))
    tokens = Stream.named(0, "bytes").integers(experts * 3 * 7, 256).astype(np.uint8).reshape(experts, 3, 7)
    return Experts(spec, theta, head), tokens


def loss(experts, tokens):
    return create("reference").token_losses(experts, tokens).mean(axis=(1, 2))


@pytest.mark.parametrize("width", [8, 5])
def test_gradient_is_that_of_finite_differences(width):
    experts, tokens = problem(width)
    body, tied, losses = gradient(experts, [tokens], "full")
    assert np.allclose(losses, loss(experts, tokens), rtol=1e-14)
    eps = 1e-5
    for weights, grads in ((experts.theta, body), (experts.head, tied)):
        flat = weights.flatten(1)
        for index in np.linspace(0, flat.shape[1] - 1, 40).astype(int):
            saved = flat[:, index].clone()
            sides = []
            for sign in (1, -1):
                flat[:, index] = saved + sign * eps
                sides.append(loss(experts, tokens))
            flat[:, index] = saved
            expected = (sides[0] - sides[1]) / (2 * eps)
            assert np.allclose(grads.flatten(1)[:, index].numpy(), expected, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("width", [8, 5])
def test_the_forward_is_bit_for_bit_the_one_that_spsa_perturbs(width, monkeypatch):
    """In float64: every byte's loss that `gradient` differentiates, against both engines that have float64."""
    experts, tokens = problem(width)
    plain, seen = lstm.hidden, []

    def recorded(*arguments, **named):
        seen.append(plain(*arguments, **named))
        return seen[-1]

    with monkeypatch.context() as patch:
        patch.setattr(lstm, "hidden", recorded)
        gradient(experts, [tokens], "full")
    ((hidden, _),) = seen
    assert hidden.requires_grad
    targets = torch.from_numpy(tokens[:, :, 1:])
    losses = lstm.cross_entropy(hidden.detach(), experts.head, targets).numpy()
    for engine in (create("reference"), TorchEngine(torch.device("cpu"), torch.float64)):
        assert np.array_equal(losses, engine.token_losses(experts, tokens)), engine.name


@pytest.mark.parametrize("experts", [1, 8])
def test_torch_lstm_is_the_recurrence_of_the_model(experts):
    """Outputs, last state, and derivatives with respect to every argument, in float64."""
    stream = Stream.named(0, "recurrence")

    def drawn(*shape):
        numbers = stream.normal(int(np.prod(shape)), direction=len(arguments)).reshape(shape)
        arguments.append(torch.from_numpy(numbers).requires_grad_())

    arguments = []
    for shape in ((3, 7, 5), (20, 5), (20, 5), (3, 5), (3, 5)):
        drawn(experts, *shape)
    results = []
    for recurrence in (lstm.unrolled, bptt.fused):
        x, w_input, w_hidden, h, c = arguments
        outputs, state = recurrence(x, w_input, w_hidden, (h, c))
        total = (outputs.cos().sum() + state[0].sin().sum() + state[1].sin().sum()).sum()
        results.append([outputs, *state, *torch.autograd.grad(total, arguments)])
    for ours, torchs in zip(*results, strict=True):
        assert ours.shape == torchs.shape
        assert torch.allclose(ours, torchs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("head_path", ["full", "decoder"])
@pytest.mark.parametrize("experts", [1, 8])
def test_gradients_through_torch_lstm_are_those_through_the_model(experts, head_path, monkeypatch):
    """In float64 to its precision, and in float32, where it is the default, to that of float32."""
    model, tokens = problem(8, experts)
    other = tokens[:, ::-1, ::-1].copy()
    expected = gradient(model, [tokens, other], head_path)
    used, plain = [], bptt.fused

    def recorded(*arguments):
        used.append(arguments[0].dtype)
        return plain(*arguments)

    monkeypatch.setattr(bptt, "fused", recorded)
    single = gradient(model.to(torch.float32), [tokens, other], head_path)
    assert used == [torch.float32] * (experts * 2 * 2), "one expert at a time: two batches of two blocks each"
    gradient(model, [tokens], head_path)
    assert torch.float64 not in used
    monkeypatch.setattr(bptt, "_has_fused", lambda experts: True)
    double = gradient(model, [tokens, other], head_path)
    for got, tolerance in ((double, 1e-12), (single, 3e-5)):
        for part, exact in zip(got, expected, strict=True):
            difference = np.abs(np.asarray(part, np.float64) - np.asarray(exact))
            assert difference.max() <= tolerance * np.abs(np.asarray(exact)).max()
    assert single[0].dtype == single[1].dtype == torch.float32


def test_losses_beyond_the_range_of_probabilities_are_exact():
    """A probability of e^-120 is zero in float32."""
    hidden, head = torch.tensor([[1.0], [1.0]]), torch.tensor([[120.0], [0.0], [119.0]])
    of_hidden, of_head = torch.empty(2, 1), torch.zeros(3, 1)
    total = bptt._decoder(hidden, head, torch.tensor([1, 0]), of_hidden, of_head)
    top = 1 / (1 + np.exp(-1))
    assert total.item() == pytest.approx(120 - 2 * np.log(top), rel=1e-6)
    assert of_head[:, 0].tolist() == pytest.approx([2 * top - 1, -1, 2 * (1 - top)], rel=1e-5)


def test_pieces_of_the_decoder_add_up(monkeypatch):
    experts, tokens = problem(8)
    whole = gradient(experts, [tokens], "full")
    monkeypatch.setattr(bptt, "_ROWS", 5)
    for part, expected in zip(gradient(experts, [tokens], "full"), whole, strict=True):
        assert np.allclose(part, expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("width", [8, 5])
def test_an_update_costs_three_forwards(width):
    """All that is missing is the gradient of the zero state before the first byte."""
    experts, tokens = problem(width)
    spec, (n, batch, length) = experts.spec, tokens.shape
    time = length - 1
    with Watch() as forward:
        create("reference").token_losses(experts, tokens)
    assert forward.operations == operations_per_token(spec) * n * batch * time
    with Watch() as update:
        gradient(experts, [tokens, tokens], "full")
    settings = Training(
        method="bptt", width=width, depth=2, embedding=8, experts=n, batch=batch, crop=time, accumulation=2
    )
    zero_states = 2 * n * batch * spec.depth * 2 * width * 4 * width
    assert update.operations == operations_of(settings, 1) - zero_states
    assert operations_of(settings, 7) == 7 * 2 * 3 * forward.operations


def test_decoder_path_is_the_delta_rule():
    experts, tokens = problem(8)
    _, tied, _ = gradient(experts, [tokens], "decoder")
    hidden = create("reference").hidden(experts, tokens)
    for e in range(2):
        expected = decoder_gradient(
            hidden[e].flatten(0, 1), experts.head[e], torch.from_numpy(tokens[e, :, 1:]).flatten()
        )
        assert torch.allclose(tied[e], expected, rtol=1e-10, atol=1e-14)


def test_accumulated_batches_are_averaged_and_weights_stay():
    experts, tokens = problem(8)
    other = tokens[:, ::-1, ::-1].copy()
    before = experts.theta.clone(), experts.head.clone()
    both = gradient(experts, [tokens, other], "full")
    one, two = (gradient(experts, [t], "full") for t in (tokens, other))
    for b, x, y in zip(both[:2], one[:2], two[:2], strict=True):
        assert torch.allclose(b, (x + y) / 2, rtol=1e-12, atol=1e-15)
    assert torch.equal(experts.theta, before[0])
    assert torch.equal(experts.head, before[1])
    assert not experts.theta.requires_grad


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc's allocator is told to keep memory")
def test_memory_of_activations_is_kept_between_gradients():
    # In a process of its own, whose first thresholds are so low that every large activation is mapped anew: ten
    # thousand page faults for each gradient, unless the estimator raises them. The first few gradients still find their
    # memory.
    faults = """
import ctypes, resource
import numpy as np, torch
from soma.estimators import bptt
from soma.models import lstm
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream

torch.set_num_threads(1)
ctypes.CDLL(None).mallopt(-3, 1 << 16)
ctypes.CDLL(None).mallopt(-1, 1 << 16)
body, head = lstm.initialise(LSTMSpec(43), Stream.named(0, "memory"))
experts = Experts(LSTMSpec(43), body[None], head[None])
tokens = np.zeros((1, 16, 129), np.uint8)
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bptt.gradient(experts, [tokens], "full")
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    found = subprocess.run([sys.executable, "-c", faults], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 500
