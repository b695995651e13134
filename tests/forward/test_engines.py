"""Every engine against the float64 reference, and what no engine's result may depend on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import KERNELS, difference_error, make_case, trained

from soma.forward import cpu, torch_engine

WIDTHS = [8, 16, 32, 33, 64, 181, 509]
FAST = ["torch", *KERNELS]


def size(width):
    """A batch that leaves lanes empty, and few enough operations for a busy machine."""
    return {"batch": 3, "time": 2, "experts": 1} if width > 400 else {"batch": 5, "time": 7}


@pytest.fixture(scope="module", params=WIDTHS, ids=lambda width: f"d{width}")
def measured(request):
    """A case, initial or trained, and its losses by the reference."""
    from soma.forward.reference import ReferenceEngine

    reference = ReferenceEngine()
    initial = make_case(request.param, **size(request.param))
    cases = {"initial": initial, "trained": trained(initial)}
    return {name: (case, case.losses(reference)) for name, case in cases.items()}


@pytest.mark.parametrize("weights", ["initial", "trained"])
@pytest.mark.parametrize("name", FAST)
def test_losses_and_their_differences(measured, weights, name, make_engine):
    case, want = measured[weights]
    got = case.losses(make_engine(name))
    assert got.dtype == np.float64
    assert got.shape == (len(case.eps), 2, 2)
    np.testing.assert_allclose(got, want, rtol=3e-6)
    assert difference_error(got, want) <= 2e-4


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("batch", [1, 4, 16, 17, 33, 70])
def test_every_batch_size_fills_its_tiles(batch, name, make_engine):
    case = make_case(16, batch=batch, time=3, experts=1)
    np.testing.assert_allclose(case.losses(make_engine(name)), case.losses(make_engine("reference")), rtol=3e-6)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize(
    "change",
    [
        {"width": 16, "time": 1, "batch": 1},
        {"width": 12, "embedding": 12},  # no projections at another embedding width
        {"width": 7, "embedding": 5, "depth": 1},  # nothing a multiple of anything
        {"width": 8, "depth": 3},
        {"width": 16, "kind": "dense"},
        {"width": 16, "kind": "gaussian"},
        {"width": 96, "batch": 40},  # weights beyond the cache: tiles share panels
    ],
    ids=str,
)
def test_shapes_off_the_beaten_path(change, name, make_engine):
    case = make_case(**change)
    reference = make_engine("reference")
    np.testing.assert_allclose(case.losses(make_engine(name)), case.losses(reference), rtol=3e-6)
    torch.testing.assert_close(case.hidden(make_engine(name)), case.hidden(reference).float(), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("weights", ["initial", "trained"])
def test_differences_along_gaussian_directions(weights, name, make_engine):
    case = make_case(33, kind="gaussian", **size(33))
    case = trained(case) if weights == "trained" else case
    assert difference_error(case.losses(make_engine(name)), case.losses(make_engine("reference"))) <= 2e-4


@pytest.mark.parametrize("name", ["reference", *FAST])
@pytest.mark.parametrize("kind", ["sparse", "gaussian"])
@pytest.mark.parametrize("signs", [(1,), (-1,), (-1, 1), (1, -1)], ids=str)
def test_each_sign_gives_the_losses_that_it_gives_among_others(signs, kind, name, make_engine):
    case, engine = make_case(16, batch=20, directions=3, kind=kind), make_engine(name)
    got, whole = case.losses(engine, *signs), case.losses(engine)
    assert got.shape == (2, 3, len(signs))
    want = whole[..., [(1, -1).index(sign) for sign in signs]]
    if name == "torch":  # products of another number of copies may round differently
        np.testing.assert_allclose(got, want, rtol=1e-7)
    else:
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(got, case.losses(make_engine("reference"), *signs), rtol=3e-6)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("width", [32, 33])
def test_token_losses_and_hidden(width, name, make_engine):
    case = make_case(width, batch=19, time=6)
    engine, reference = make_engine(name), make_engine("reference")
    got = case.token_losses(engine)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, case.token_losses(reference), rtol=1e-5)
    hidden = case.hidden(engine)
    assert hidden.dtype == torch.float32
    torch.testing.assert_close(hidden, case.hidden(reference).float(), rtol=1e-4, atol=2e-5)
    unperturbed = replace(case, eps=[0.0, 0.0]).losses(engine)
    np.testing.assert_allclose(unperturbed, np.broadcast_to(got.mean((1, 2))[:, None, None], (2, 2, 2)), rtol=1e-7)


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("kind", ["sparse", "gaussian"])
def test_weights_stay_bit_for_bit(kind, name, make_engine):
    case, engine = make_case(16, kind=kind, eps=0.1), make_engine(name)
    before = case.theta.clone(), case.head.clone(), case.tokens.copy()
    case.losses(engine)
    case.losses(engine, -1)
    case.token_losses(engine)
    case.hidden(engine)
    assert torch.equal(case.theta, before[0])
    assert torch.equal(case.head, before[1])
    np.testing.assert_array_equal(case.tokens, before[2])


@pytest.mark.parametrize("name", FAST)
def test_large_logits_and_saturated_gates(name, make_engine):
    """No exponential overflows: the loss is exact far beyond what a trained model reaches."""
    case = make_case(33, batch=18)
    scaled = case.with_weights(theta=case.theta * 30, head=case.head * 60)
    got, want = (scaled.token_losses(make_engine(n)) for n in (name, "reference"))
    assert want.max() > 200
    # Weights thirty times too large amplify rounding, so only typical targets are compared.
    assert np.isfinite(got).all()
    assert np.median(np.abs(got - want) / want.clip(1)) < 1e-3


@pytest.mark.parametrize("name", FAST)
def test_a_broken_weight_anywhere_has_no_finite_loss(name, make_engine):
    case, engine = make_case(16, batch=1, time=3, directions=1), make_engine(name)
    for slot in case.spec.layout:
        theta = case.theta.clone()
        theta[0, slot.offset + slot.size // 2] = torch.nan
        got = case.with_weights(theta=theta).losses(engine)
        assert np.isnan(got[0]).all(), slot.name
        assert np.isfinite(got[1]).all()
    head = case.head.clone()
    head[0, 200, 3] = torch.nan  # a byte that does not occur
    assert np.isnan(case.with_weights(head=head).losses(engine)[0]).all()


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("kind", ["sparse", "gaussian"])
def test_same_bits_whatever_shares_the_call(kind, name, make_engine):
    case = make_case(16, experts=3, batch=20, directions=5, kind=kind)
    engine = make_engine(name)
    whole = case.losses(engine)
    np.testing.assert_array_equal(case.losses(engine), whole)
    np.testing.assert_array_equal(case.some(1).losses(engine), whole[1:2])
    np.testing.assert_array_equal(case.some(2, 0).losses(engine), whole[[2, 0]])
    tokens = case.token_losses(engine)
    np.testing.assert_array_equal(case.some(2).token_losses(engine), tokens[2:])
    if name != "torch":  # its chunks of directions may round differently
        some = replace(case, probes=replace(case.probes, directions=range(4, 6)))
        np.testing.assert_array_equal(some.losses(engine), whole[:, 2:4])
        rows = replace(case, tokens=np.ascontiguousarray(case.tokens[:, 7:12]))
        np.testing.assert_array_equal(rows.token_losses(engine), tokens[:, 7:12])


@pytest.mark.parametrize(("width", "kind"), [(16, "sparse"), (33, "gaussian")])
def test_chunks_of_the_torch_engine_change_no_more_than_rounding(width, kind, make_engine, monkeypatch):
    """Chunks of copies and, without perturbations, of sequences agree.

    Products of another shape may round differently, so that the budget, which fixes the chunks, is a constant.
    """
    case, engine = make_case(width, batch=5, time=6, directions=4, kind=kind), make_engine("torch")
    losses, tokens = case.losses(engine), case.token_losses(engine)
    floats = 10 * width + 256  # of a sequence and time step
    for copies in (1, 3, 6):
        monkeypatch.setattr(torch_engine, "_BUDGET", {"cpu": copies * 5 * 6 * floats})
        assert engine._copies(case.spec, case.tokens) == copies
        np.testing.assert_allclose(case.losses(engine), losses, rtol=1e-7)
    for rows in (1, 2, 4):
        monkeypatch.setattr(torch_engine, "_BUDGET", {"cpu": rows * 6 * floats})
        assert engine._rows(case.spec, case.tokens) == rows
        np.testing.assert_allclose(case.token_losses(engine), tokens, rtol=1e-6)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("width", "kind"), [(16, "sparse"), (181, "sparse"), (16, "gaussian")])
def test_same_bits_on_any_number_of_threads(width, kind, name, make_engine):
    case = make_case(width, experts=1, batch=70, time=2, directions=3, kind=kind)
    engine = make_engine(name)
    losses, tokens, hidden = case.losses(engine), case.token_losses(engine), case.hidden(engine)
    for threads in (2, 5):
        torch.set_num_threads(threads)
        np.testing.assert_array_equal(case.losses(engine), losses)
        np.testing.assert_array_equal(case.token_losses(engine), tokens)
        assert torch.equal(case.hidden(engine), hidden)


@pytest.mark.parametrize("name", KERNELS)
def test_steps_of_a_wide_model_taken_together_give_the_bits_of_single_steps(name, make_engine):
    """A wide model takes eight at once (`Sizes::steps` in csrc/network.h), here 8 and 3, or 8 and 1, or one alone."""
    case, engine = make_case(257, experts=1, depth=1, batch=33, time=11), make_engine(name)
    losses, hidden = case.token_losses(engine), case.hidden(engine)
    np.testing.assert_allclose(losses, case.token_losses(make_engine("reference")), rtol=1e-5)
    for time in (1, 9):
        short = replace(case, tokens=np.ascontiguousarray(case.tokens[..., : time + 1]))
        np.testing.assert_array_equal(short.token_losses(engine), losses[..., :time])
        assert torch.equal(short.hidden(engine), hidden[:, :, :time])


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_of_heads_are_the_same_bits_in_any_company(name, make_engine, monkeypatch):
    """Whichever experts share the call, on any number of threads, and in the portions that memory allows."""
    case, engine = make_case(16, experts=3, batch=5, time=7), make_engine(name)
    whole = case.head_gradient(engine)
    for threads in (2, 5):
        torch.set_num_threads(threads)
        assert torch.equal(case.head_gradient(engine), whole)
    assert torch.equal(case.some(1).head_gradient(engine), whole[1:2])
    assert torch.equal(case.some(2, 0).head_gradient(engine), whole[[2, 0]])


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("change", [{}, {"embedding": 20, "batch": 1, "time": 1}, {"width": 33, "time": 71}], ids=str)
def test_gradients_of_heads(change, name, make_engine):
    case = make_case(**({"width": 32} | change))
    got = case.head_gradient(make_engine(name))
    want = case.with_weights(head=case.head.double()).head_gradient(make_engine("reference"))
    assert got.dtype == torch.float32
    assert (got - want).norm() < 3e-6 * want.norm()
    broken = case.with_weights(head=case.head.index_fill(1, torch.tensor([200]), torch.nan))
    assert torch.isnan(broken.head_gradient(make_engine(name))).any()


@pytest.mark.parametrize("name", KERNELS)
def test_gaussian_directions_are_handed_over_in_any_portions(name, make_engine, monkeypatch):
    case, engine = make_case(16, directions=5, kind="gaussian"), make_engine(name)
    whole = case.losses(engine)
    monkeypatch.setattr(cpu, "_NORMALS", 2 * 2 * case.spec.size)
    np.testing.assert_array_equal(case.losses(engine), whole)


@pytest.mark.skipif(not {"cpu-avx512", "cpu-avx2"} <= set(KERNELS), reason="needs a machine with AVX-512")
@pytest.mark.parametrize(("width", "kind"), [(16, "sparse"), (33, "sparse"), (33, "gaussian")])
def test_vector_width_does_not_change_the_bits(width, kind, make_engine):
    case = make_case(width, batch=21, kind=kind)
    wide, narrow = (case.losses(make_engine(f"cpu-{isa}")) for isa in ("avx512", "avx2"))
    np.testing.assert_array_equal(wide, narrow)


@pytest.mark.parametrize("name", KERNELS)
def test_experts_may_share_one_head(name, make_engine):
    case = make_case(16, experts=3)
    engine = make_engine(name)
    shared = case.with_weights(head=case.head[:1].expand(3, -1, -1))
    copied = case.with_weights(head=case.head[:1].repeat(3, 1, 1))
    np.testing.assert_array_equal(shared.losses(engine), copied.losses(engine))
