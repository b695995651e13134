"""Every runner against the evaluator and the float64 reference; states; independence of other pairs in a call."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_model import EXPERTS, PREFIX, SPEC, Tiny, make_experts

from soma.errors import SomaError
from soma.evaluation.ensemble import lstm_losses, mixture_losses, selected_losses
from soma.forward.native import INSTRUCTION_SETS
from soma.forward.registry import create
from soma.inference import compiled
from soma.inference.compiled import CompiledRunner
from soma.inference.model import make_runner
from soma.inference.runner import Runner, grouped
from soma.models.spec import LSTMSpec

with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TRITON_INTERPRET", "1")  # triton decides when a kernel is defined
    try:
        from soma.forward.triton_network import Tuning
        from soma.inference.triton_runner import TritonRunner
    except ImportError:  # pip install -r requirements-triton.txt
        TritonRunner = None  # type: ignore[assignment, misc]

KERNELS = [isa for isa in INSTRUCTION_SETS if compiled.load(isa) is not None]
TRITON = ["triton"] if TritonRunner else []
RUNNERS = [*(f"cpu-{isa}" for isa in KERNELS), *TRITON, "torch", "evaluator"]
# Widths below one vector, between two vectors, equal to the embedding, and projected; shared and local heads; on both
# sides of the width up to which triton's kernels hold a whole block.
SIZES = [
    (LSTMSpec(8, 1, 8), True),
    (LSTMSpec(13, 2, 32), True),
    (LSTMSpec(32, 2, 32), True),
    (LSTMSpec(70, 2, 20), False),
    (LSTMSpec(16, 1, 12), False),
    (LSTMSpec(33, 1, 33), True),
]


@pytest.fixture(autouse=True, scope="module")
def _interpret() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield


def runner(name: str, spec: LSTMSpec, shared: bool, monkeypatch: pytest.MonkeyPatch, experts: int = 4) -> Runner:
    if name.startswith("cpu-"):
        monkeypatch.setenv("SOMA_CPU_ISA", name[4:])
        name = "cpu"
    if name == "triton":  # several chunks of time, and few programs, because each costs time in the interpreter
        tuning = Tuning(longest=2, row_programs=1, row_tile=64, norm_rows=64, cells=1 << 14)
        return TritonRunner(make_experts(spec, experts, shared=shared), torch.device("cpu"), tuning=tuning)
    return make_runner(make_experts(spec, experts, shared=shared), name, "cpu")


def problem(experts: int = 4, sequences: int = 7, length: int = 90) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw bytes [n, T + 1], and experts [n, 2] in groups of very different sizes."""
    rng = np.random.default_rng(0)
    selected = np.stack([np.zeros(sequences, int), rng.integers(1, experts, sequences)], axis=1)
    tokens = rng.integers(0, 256, (sequences, length + 1)).astype(np.uint8)
    tokens.flags.writeable = False  # as in an evaluation set
    return tokens, selected


def losses(run: Runner, tokens: NDArray[np.uint8], selected: NDArray[np.int64], scored: int) -> NDArray[np.float64]:
    expert, sequence, place = grouped(selected)
    out = np.empty((selected.size, scored))
    out[place] = run.losses(expert, sequence, tokens, scored)
    return out.reshape(*selected.shape, scored)


@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.parametrize(("spec", "shared"), SIZES, ids=str)
def test_losses_are_the_references(name: str, spec: LSTMSpec, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Triton's interpreter is slow; a group of 17 already exceeds one program there.
    tokens, selected = problem(sequences=17, length=7) if name == "triton" else problem()
    skipped = 3 if name == "triton" else 30
    out = losses(runner(name, spec, shared, monkeypatch), tokens, selected, tokens.shape[1] - 1 - skipped)
    reference = lstm_losses(create("reference"), make_experts(spec, 4, shared=shared))
    expected = selected_losses(reference, tokens, selected, skipped)
    assert np.abs(np.exp(-out) - np.exp(-expected)).max() < 2e-6
    assert np.abs(mixture_losses(out) - mixture_losses(expected)).max() < 2e-5
    assert abs(mixture_losses(out).mean() - mixture_losses(expected).mean()) < 5e-7


def test_the_ensemble_is_the_evaluators(tiny: Tiny) -> None:
    """Routes, probabilities and reduction agree with the evaluation, to 1e-8 through its own engine."""
    windows = tiny.windows(60)
    for k in (1, 3, EXPERTS):
        selected = tiny.plain_router().route(windows, PREFIX, k)
        engine = lstm_losses(create("auto"), make_experts(SPEC, EXPERTS, shared=False))
        expected = mixture_losses(selected_losses(engine, windows, selected, PREFIX))
        ours = tiny.ensemble(k=k).losses(windows)
        np.testing.assert_array_equal(tiny.ensemble(k=k).select(windows), selected)
        assert np.abs(np.exp(-ours) - np.exp(-expected)).max() < 2e-6
        assert abs(ours.mean() - expected.mean()) < 5e-7  # the engine itself differs by 1e-7 from the float64 reference
        exact = tiny.ensemble(k=k, engine="evaluator").losses(windows)
        assert np.abs(exact - expected).max() < 1e-8


def test_without_a_router_the_first_experts_serve(tiny: Tiny) -> None:
    model = tiny.ensemble(router=None)
    np.testing.assert_array_equal(model.select(tiny.windows(2)), [[0, 1, 2]] * 2)


@pytest.mark.parametrize(
    ("name", "spec", "shared"),
    [*((name, *SIZES[1]) for name in RUNNERS), *((name, *SIZES[5]) for name in TRITON)],
    ids=str,
)
def test_a_state_carried_byte_by_byte_is_the_full_forward(
    name: str, spec: LSTMSpec, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(name, spec, shared, monkeypatch)
    length = 4 if name == "triton" else 90
    tokens, _ = problem(length=length)
    expert = np.array([0, 0, 1, 3, 3, 3, 3])
    state = run.start(7)
    steps = np.stack([run.advance(expert, tokens[:, t : t + 1], state) for t in range(length)], axis=1)
    at_once = run.advance(expert, tokens[:, :length], run.start(7))
    full = run.losses(expert, np.arange(7), tokens, length)
    chosen = np.take_along_axis(steps, tokens[:, 1:, None].astype(int), axis=2)[..., 0]
    assert np.allclose(steps.sum(axis=2), 1, atol=1e-12)
    assert np.abs(chosen - np.exp(-full)).max() < 2e-6
    if name.startswith("cpu-"):
        np.testing.assert_array_equal(steps[:, -1], at_once)
    else:
        assert np.abs(steps[:, -1] - at_once).max() < 2e-6


@pytest.mark.parametrize("name", [name for name in RUNNERS if name.startswith("cpu-")])
@pytest.mark.parametrize(("spec", "shared"), SIZES, ids=str)
def test_no_bit_depends_on_what_shares_a_call(
    name: str, spec: LSTMSpec, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(name, spec, shared, monkeypatch)
    tokens, selected = problem(sequences=21)
    together = losses(run, tokens, selected, 60)
    alone = np.concatenate([losses(run, tokens[i : i + 1], selected[i : i + 1], 60) for i in range(21)])
    np.testing.assert_array_equal(together, alone)
    torch.set_num_threads(3)
    np.testing.assert_array_equal(together, losses(run, tokens, selected, 60))
    np.testing.assert_array_equal(together[..., 30:], losses(run, tokens, selected, 30))


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # from the maximum in triton's interpreter
def test_weights_that_are_no_numbers_give_no_numbers() -> None:
    experts = make_experts(SPEC, 2, shared=True)
    experts.theta[1, 5] = float("nan")
    tokens, _ = problem(sequences=2, length=8)
    for name in ("auto", "torch", *TRITON):
        run = make_runner(experts, name, "cpu")
        assert name in ("auto", run.name)
        out = run.losses(np.arange(2), np.arange(2), tokens, 6)
        assert np.isfinite(out[0]).all()
        assert np.isnan(out[1]).all()


def test_what_does_not_fit_is_refused() -> None:
    experts = make_experts(SPEC, 3, shared=False)
    with pytest.raises(SomaError, match="use auto, cpu, triton"):
        make_runner(experts, "fast", "cpu")
    for device, sentence in (("cuda", "sees no CUDA device"), ("foo", "device is 'foo'; use cpu"), ("mps", "is mps")):
        with pytest.raises(SomaError, match=sentence):
            make_runner(experts, "auto", device)
    if KERNELS:
        run = CompiledRunner(experts)
        tokens, _ = problem()
        for expert, row in ((3, 0), (-1, 0), (0, 7)):
            with pytest.raises(ValueError, match="pairs need one of the experts"):
                run.losses(np.array([expert]), np.array([row]), tokens, 5)


@pytest.mark.skipif(not TRITON, reason="triton is not installed")
def test_a_gpu_has_triton_or_else_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    experts = make_experts(SPEC, 2, shared=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET")
        with pytest.raises(SomaError, match="needs a CUDA device"):
            make_runner(experts, "triton", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("soma.inference.triton_runner.TritonRunner", lambda *_: "triton")
    monkeypatch.setattr("soma.inference.batched.BatchedRunner", lambda *_: "torch")
    assert make_runner(experts, "auto", "cuda:1") == "triton"
    assert make_runner(experts, "torch", "cuda:1") == "torch"
    monkeypatch.setattr("soma.inference.model.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "soma.inference.triton_runner", None)  # as an import without triton fails
    assert make_runner(experts, "auto", "cuda:1") == "torch"
    with pytest.raises(SomaError, match="not installed"):
        make_runner(experts, "triton", "cuda:1")


def test_groups_hold_every_pair_once() -> None:
    selected = np.array([[2, 0], [0, 1], [2, 1]])
    expert, sequence, place = grouped(selected)
    assert expert.tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(selected.reshape(-1)[place], expert)
    np.testing.assert_array_equal(place // 2, sequence)
