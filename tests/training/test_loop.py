"""The loop on small text: it learns, repeats bit for bit, resumes exactly, and trains a group as it trains one."""

import logging

import numpy as np
import pytest
import torch

from soma.data.sets import ValidationSet
from soma.errors import SomaError
from soma.estimators import bptt, spsa
from soma.estimators.eggroll import annealed, read_streams
from soma.evaluation.documents import evaluate_run
from soma.evaluation.published import Published
from soma.forward.cpu import available
from soma.forward.probes import Probes
from soma.forward.registry import create
from soma.models import gru
from soma.models.experts import Experts
from soma.models.lstm import initialise
from soma.numerics.rng import Stream
from soma.training import learner
from soma.training.adam import Adam
from soma.training.checkpoint import MEMORY, Checkpoints, tensor_name
from soma.training.history import HISTORY_COLUMNS
from soma.training.learner import Group, Start, learner_of
from soma.training.loop import Interrupted, Trainer
from tests.training.small_runs import (
    EGGROLL,
    SHARDS,
    TEXT,
    WINDOW,
    assert_resumed,
    digest,
    drawn,
    spec,
    states,
    trained,
    trainer,
)


def some_start(run):
    body, head = initialise(run.model, Stream.named(0, "start"))
    return Start(Experts(run.model, body[None], head[None]))


def test_it_learns():
    state = trained(spec(updates=150))
    first, last = state.history.numbers[[0, -1]]
    assert first[3] > 4.5
    assert last[3] < 3.8  # nats per byte; a uniform guess is 5.5


def test_backpropagation_learns_faster_from_the_same_batches():
    state, other = (trained(spec(updates=60, method=method)) for method in ("bptt", "spsa"))
    assert state.history.column("expert_validation")[-1] < other.history.column("expert_validation")[-1]
    data, others = ([data for data, _ in drawn(progress)] for progress in (state, other))
    assert data == others
    assert all(data)
    assert {probes for _, probes in drawn(state)} == {""}  # it has none


def test_a_summed_loss_moves_experts_by_each_others_losses():
    """Same start, batches and probes: beside a neighbour an expert moves otherwise, and alone as by its own loss."""
    own, summed = (trained(spec(updates=1, loss=loss)) for loss in ("independent", "summed"))
    name = tensor_name(0, 1, "last", "body")
    assert not torch.equal(own.kept[name], summed.kept[name])
    alone = trained(spec(updates=1, loss="summed"), range(1))
    assert torch.equal(alone.kept[name], own.kept[name])


def test_bitwise_repeat_and_seed():
    assert digest(trained(spec())) == digest(trained(spec()))
    assert digest(trained(spec())) != digest(trained(spec().model_copy(update={"seed": 4})))


METHODS = [{"head": "local"}, {"head": "shared-frozen"}, {"method": "bptt"}, {"loss": "summed"}]
BPTT = [{"head_path": "decoder"}, {"head": "shared-frozen"}, {"start": "random"}]


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("stop_at", [1, 5, 6, 11])
def test_interrupted_and_continued_is_never_stopped(tmp_path, method, stop_at):
    run = spec(**method)
    assert_resumed(tmp_path, run, some_start(run), stop_at)


def test_accumulated_batches_are_drawn_again_as_they_were(tmp_path):
    run = spec(accumulation=2, updates=4)
    assert_resumed(tmp_path, run, some_start(run), 3)


@pytest.mark.parametrize("change", BPTT, ids=str)
def test_interrupted_backpropagation_is_never_stopped(tmp_path, change):
    run = spec(method="bptt", **change)
    assert_resumed(tmp_path, run, None if run.settings.start == "random" else some_start(run), 5)


def test_heads_under_backpropagation():
    """After one update from one start: what a head's gradient counts is no matter of the body's."""
    start = some_start(spec())
    runs = {"full": {}, **{str(next(iter(change.values()))): change for change in BPTT[:2]}}
    full, decoder, frozen = (trainer(spec(method="bptt", **change), start=start) for change in runs.values())
    for t in (full, decoder, frozen):
        t._step()
    assert torch.equal(full.learner.experts.theta, decoder.learner.experts.theta)
    assert torch.equal(full.learner.experts.theta, frozen.learner.experts.theta)
    assert not torch.equal(full.learner.experts.head, decoder.learner.experts.head)
    assert torch.equal(frozen.learner.experts.head[1], start.experts.head[0])
    by_differences = trainer(spec(), start=start)
    by_differences._step()
    # The delta rule of the other method is the decoder's path, on the same batch: the same step of Adam.
    assert torch.allclose(decoder.learner.experts.head, by_differences.learner.experts.head, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["torch", "auto"])
@pytest.mark.parametrize("method", METHODS[:3], ids=str)
def test_a_group_gives_the_bytes_of_one_process_each(method, engine):
    run = spec(**method)
    start = some_start(run)
    together = trained(run, start=start, engine=engine)
    for e in range(2):
        alone = trained(run, range(e, e + 1), start, engine)
        for name, tensor in alone.kept.items():
            assert torch.equal(tensor, together.kept[name]), name
    bodies = [together.kept[tensor_name(e, 12, "last", "body")] for e in range(2)]
    assert not torch.equal(*bodies)


def eggroll(depth=1, updates=12, **changes):
    fixed = {"method": "eggroll", "experts": 1, "start": "random"}
    return spec(**fixed, depth=depth, updates=updates, eggroll=EGGROLL | changes)


@pytest.mark.skipif(not available(), reason="no kernel runs on this machine")
@pytest.mark.parametrize("state", ["carry", "reset", "pair_shared"])
def test_eggroll_resumes_with_the_kernel(tmp_path, state):
    assert_resumed(tmp_path, eggroll(state=state), None, 5, "cpu")


def test_eggroll_learns_through_several_blocks():
    """From above a uniform guess, 5.55 nats per byte, to well below it (tests/estimators goes further with one)."""
    run = eggroll(depth=2, updates=60, population=128, streams=8, tokens=32, pair_chunk=64)
    state = trained(run, range(1))
    assert state.history.column("train_loss")[0] > 5.6
    assert state.history.column("train_loss")[-1] < 5.0
    assert state.history.column("expert_validation")[-1] < 5.0


@pytest.mark.parametrize("state", ["carry", "reset", "pair_shared"])
def test_eggroll_continues_with_its_members_states(tmp_path, state):
    run = eggroll(state=state)
    whole = trained(run, range(1))
    first = trainer(run, range(1))
    with pytest.raises(Interrupted):
        first.train(lambda: states(tmp_path).save(first), should_stop=lambda: first.progress.update == 5)
    second = trainer(run, range(1))
    assert states(tmp_path).restore(second)
    second.train(lambda: None)
    assert digest(second.progress) == digest(whole)
    assert whole.history.column("expert_validation")[-1] < whole.history.column("expert_validation")[0]
    start = second.learner.weights["body"][0] - trainer(run, range(1)).learner.weights["body"][0]
    assert torch.allclose(start / 0.1, (start / 0.1).round(), atol=1e-4)  # every step is a multiple of delta


def test_the_log_says_what_an_update_of_eggroll_did(caplog):
    run = eggroll(sigma=3e-8)  # so little that float32 losses of partners can be equal
    t = trainer(run, range(1))
    rule, theta = t.learner.rule, t.learner.weights["body"][0].clone()
    losses, _ = rule.member_losses(theta, read_streams(TEXT, 4, 16, 0), rule.initial_states(), 0)
    moved = (rule.update(theta, losses, 0)[0] != theta).double().mean()
    ties = (losses[:, 0] == losses[:, 1]).mean()
    assert 0 < ties < 1
    with caplog.at_level(logging.INFO, "soma.train"):
        t.train(lambda: None, report_every=0)
    assert f"alpha 0.5, step 0.1, moved {moved:.3g}, ties {ties:.3g} · " in caplog.messages[0]


def test_the_history_has_what_each_check_of_eggroll_measured(tmp_path):
    run = eggroll()
    t = trainer(run, range(1))
    before = {}
    step = t.learner.step

    def watched(update, scheduled):
        theta = t.learner.weights["body"][0].clone()
        loss = step(update, scheduled)
        before[update + 1] = float((t.learner.weights["body"][0] != theta).double().mean())
        return loss

    t.learner.step = watched
    t.train(lambda: None)
    history = t.progress.history.table()
    assert history.column_names == [*HISTORY_COLUMNS, "alpha", "moved", "step", "ties"]
    assert history["moved"].to_pylist() == [before[u] for u in history["update"].to_pylist()]
    states(tmp_path).save(t)
    again = trainer(run, range(1))
    assert states(tmp_path).restore(again)
    assert again.progress.history.table().equals(history)
    assert trained(spec()).history.table().column_names == list(HISTORY_COLUMNS)  # SPSA measures nothing else


SHARE = 1 / 6


@pytest.mark.parametrize(
    ("schedule", "alphas", "steps"),
    [
        ({}, [0.5] * 4, [0.1] * 4),
        ({"alpha_halved_at": SHARE}, [0.25, 0.5 / 3.5, 0.1, 0.5 / 6.5], [0.1] * 4),
        ({"step_halved_at": SHARE}, [0.5] * 4, [0.05, 0.1 / 3.5, 0.02, 0.1 / 6.5]),
        ({"step_halved_at": "plateau"}, [0.5] * 4, [0.1, 0.1, 0.05, 0.025]),
    ],
    ids=["constant", "alpha", "step", "plateau"],
)
def test_schedules_of_eggroll(schedule, alphas, steps):
    """Twelve updates, of which updates 2, 5, 8 and 11 (from 0) are written down; a share of 1/6 is two updates."""
    run = eggroll(**schedule)
    # Nothing counts as an improvement, so that the plateau halves at every check after the first.
    plateau = run.settings.plateau.model_copy(update={"patience": 1, "min_improvement": 99.0})
    settings = run.settings.model_copy(update={"plateau": plateau})
    history = trained(run.model_copy(update={"settings": settings}), range(1)).history.table()
    assert history["update"].to_pylist() == [3, 6, 9, 12]
    assert history["alpha"].to_pylist() == pytest.approx(alphas)
    assert history["step"].to_pylist() == pytest.approx(steps)


def test_the_originals_default_schedule_of_alpha():
    """nano-egg: alpha = 4 over 1,000 updates is 1 / ((2^4 - 1) t / 1000 + 1)."""
    for t in (0, 1, 100, 999):
        assert annealed(1.0, 1 / 15, t, 1000) == pytest.approx(1 / ((2**4 - 1) * t / 1000 + 1))


def test_eggroll_is_evaluated_unperturbed_and_every_window_from_the_zero_state():
    run = eggroll(nonlinearity="sigmoid_tanh", separator=None)
    kept = trained(run, range(1)).kept
    windows = TEXT[: 6 * WINDOW].reshape(6, WINDOW)
    nothing = np.full(6, "")
    data = ValidationSet(windows, np.arange(6), nothing, nothing, nothing, nothing, np.zeros(6, np.int64), prefix=20)
    selected = np.zeros((6, 1), np.int64)
    opened = Published(run, Checkpoints(run, range(1), kept), None)
    rows = evaluate_run(opened, selected, data, create("auto"), [1])
    assert len(rows) == 6 * len(run.milestones) * 2
    for row in rows.itertuples():
        theta = kept[tensor_name(0, row.update, row.iterate, "body")]
        own = windows[row.document : row.document + 1]
        alone = gru.token_losses(run.gru, theta, own, nonlinearity="sigmoid_tanh", separator=None)
        assert row.nats == pytest.approx(alone[0, 20:].sum(), rel=1e-6)
        assert row.bytes == WINDOW - 1 - 20


def test_a_frozen_head_stays_and_a_local_one_moves():
    run = spec(head="shared-frozen")
    start = some_start(run)
    frozen = trainer(run, start=start)
    frozen.train(lambda: None)
    assert torch.equal(frozen.learner.experts.head[0], start.experts.head[0])
    assert not any(name.endswith("head") for name in frozen.progress.kept)
    moved = trained(spec(), start=start)
    assert not torch.equal(moved.kept[tensor_name(0, 12, "last", "head")], start.experts.head[0])


def test_average_is_the_mean_first_and_exponential_after():
    run = spec(updates=12, average=0.5)
    t, seen = trainer(run), []
    while t.progress.update < 12:
        t._step()
        seen.append(t.learner.experts.theta.clone())
    expected = seen[0].clone()
    for i, theta in enumerate(seen[1:], 2):
        decay = min(0.5, (i - 1) / i)
        expected = decay * expected + (1 - decay) * theta
    assert torch.allclose(t.progress.average["body"], expected, rtol=1e-6, atol=1e-7)


def test_history_records_what_the_schedule_did():
    state = trained(spec(updates=30, plateau={"every": 3, "patience": 3, "windows": 2, "min_improvement": 10}))
    rates = [row[4] for row in state.history.numbers if row[1] == 0]
    assert rates[0] == 0.02
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.02 / 8
    lr, eps = (state.history.column(name) for name in ("lr", "eps"))
    assert np.allclose(lr / 0.02, eps / 0.01)


def test_a_non_finite_loss_stops_with_the_update_named():
    t = trainer(spec())
    t._step()
    t.learner.experts.theta[1, 0] = float("nan")
    with pytest.raises(SomaError, match=r"the loss of expert 1 is not finite at update 2; lower lr or eps"):
        t.train(lambda: None)


def test_a_run_that_may_fail_publishes_what_is_not_a_number():
    run = spec(may_fail=True)
    t = trainer(run)
    for _ in range(3):
        t._step()
    t.learner.experts.theta[1, 0] = float("nan")
    t.train(lambda: None)
    assert t.progress.failed_at == 4
    last = t.progress.kept[tensor_name(0, run.updates, "last", "body")]
    assert torch.isnan(last).all()
    assert set(t.progress.kept) == set(trained(spec()).kept)


def test_a_continued_run_takes_over_weights_and_moments(tmp_path):
    whole = trained(spec(keep_memory=True))
    moments = {
        name: torch.stack([whole.kept[tensor_name(e, 12, MEMORY, name)] for e in range(2)])
        for name in ("body.m", "body.v", "head.m", "head.v")
    }
    body, head = (
        torch.stack([whole.kept[tensor_name(e, 12, "last", name)] for e in range(2)]) for name in ("body", "head")
    )
    run = spec(kind="continuation")
    experts = Experts(run.model, body, head)
    start = Start(experts, moments, updates=12)
    assert_resumed(tmp_path, run, start, 5)
    again = trainer(run, start=start)
    assert all(torch.equal(again.learner.memory[name], moment) for name, moment in moments.items())
    # The oracle: the same optimiser, told the same gradient as its thirteenth.
    oracle = trainer(run, start=Start(experts)).learner
    gradients = oracle.gradients(0, [oracle._batch(0, 0)], lambda x: [x, x])
    adam = Adam(run.settings.beta1, run.settings.beta2, run.settings.delta, run.settings.weight_decay)
    expected, m, v = body.clone(), moments["body.m"].clone(), moments["body.v"].clone()
    adam.step(expected, gradients[0], m, v, 13, torch.tensor([run.settings.lr] * 2)[:, None])
    again._step()
    assert torch.equal(again.learner.experts.theta, expected)


def test_what_is_drawn_is_chained_and_equal_for_independent_and_summed_losses():
    chains = {loss: drawn(trained(spec(loss=loss))) for loss in ("independent", "summed")}
    assert chains["independent"] == chains["summed"]
    assert len(set(chains["summed"])) == len(chains["summed"])  # of every expert and measurement
    other = drawn(trained(spec(seed=4)))
    assert not set(sum(other, ())) & set(sum(chains["summed"], ()))


def test_batches_do_not_depend_on_how_many_are_drawn_at_once(monkeypatch):
    def batches(drawn, updates):
        monkeypatch.setattr(learner, "_DRAWN", drawn)
        one = trainer(spec(accumulation=2)).learner
        return {(u, a): one._batch(u, a).tobytes() for u in updates for a in (1, 0)}

    alone = batches(1, range(7))
    assert len(set(alone.values())) == 14
    for updates in (range(7), (3, 4, 6, 5, 0, 2, 1)):
        assert batches(3 * 2 * 2 * 2 * 4, updates) == batches(1 << 15, updates) == alone


def test_batches_stay_inside_windows_and_shards():
    t = trainer(spec(batch=64, crop=WINDOW))
    tokens = t.learner._batch(0, 0)
    assert tokens.shape == (2, 64, WINDOW + 1)
    for e, shard in enumerate(SHARDS):
        own = {TEXT[i * WINDOW : (i + 1) * WINDOW + 1].tobytes() for i in shard.train}
        assert all(row.tobytes() in own for row in tokens[e])


def test_variance_of_summed_over_independent_losses_on_a_trained_ensemble():
    """Proposition 1 where it is used: four trained experts, one batch, dense probes, backpropagation as reference."""
    run, n = spec(experts=4, updates=40, probe="dense"), 4
    shards = [SHARDS[e % 2] for e in range(n)]
    learner = learner_of("spsa")(Group(run, range(n), shards, TEXT), create("auto"), torch.device("cpu"))
    Trainer(learner).train(lambda: None)
    tokens = learner._batch(99, 0)
    exact = bptt.gradient(learner.experts, [tokens], "decoder")[0].double().numpy()
    variance = {}
    for loss in ("independent", "summed"):
        errors = []
        for update in range(150):
            probes = Probes(run.model, Stream.named(0, "variance"), "dense", update, tuple(range(n)), range(8))
            arguments = (learner.engine, learner.experts, [tokens], [probes], [1e-3] * n, loss)
            errors.append(((spsa.estimate(*arguments).gradient - exact) ** 2).sum())
        variance[loss] = np.mean(errors) / (exact**2).sum()
    d = run.model.size
    assert variance["independent"] == pytest.approx((d - 1) / 8, rel=0.1)
    assert variance["independent"] / variance["summed"] == pytest.approx((d - 1) / (n * d - 1), rel=0.1)
