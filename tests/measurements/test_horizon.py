"""Longer state: the ordinary protocol where state is carried over one window, and a planted early event."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from soma.analysis import horizon
from soma.data.sets import ValidationSet
from soma.errors import SomaError
from soma.evaluation.ensemble import lstm_losses, mixture_losses, selected_losses
from soma.forward.reference import ReferenceEngine
from soma.forward.registry import create
from soma.measurements import carry, recall
from soma.measurements.recall import CHANCE, Lesson
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream
from tests.analysis.invented import toy_plan
from tests.measurements.problem import ensemble

WINDOW, PREFIX = 12, 5
STREAM = Stream.named(0, "test", "recall")
SPEC = LSTMSpec(6, 1, 6)
LESSON = Lesson("spsa", 6, 3e-2, 1e-2, 8, 4, 1e7, 0)


def held_out(ids) -> ValidationSet:
    nothing, numbers = np.array(ids), np.arange(len(ids))
    return ValidationSet(
        np.zeros((len(ids), WINDOW + 1), np.uint8), numbers, nothing, nothing, nothing, nothing, numbers, PREFIX
    )


def test_state_carried_over_one_window_is_the_ordinary_protocol_and_over_all_reads_on():
    experts, text = ensemble(3, 5, 4 * WINDOW + 1)
    losses = lstm_losses(ReferenceEngine(), experts)
    selected = np.array([[0, 1], [2, 0], [1, 2], [0, 2], [1, 0]])
    document = np.array([7, 7, 8, 9, 9])
    rows = carry.carried_losses(losses, text, selected, document, (1, 2, 4), held_out(["a"]))
    assert set(rows["bytes"]) == {4 * (WINDOW - PREFIX), 8 * (WINDOW - PREFIX)}
    for carried, own in rows.groupby("carried"):
        for number in (7, 8, 9):
            expected = 0.0
            for stretch in np.flatnonzero(document == number):
                for first in range(0, 4 * WINDOW, carried * WINDOW):
                    read = text[stretch : stretch + 1, first : first + carried * WINDOW + 1]
                    nats = mixture_losses(selected_losses(losses, read, selected[stretch : stretch + 1], 0))[0]
                    expected += nats.reshape(-1, WINDOW)[:, PREFIX:].sum()
            assert own.set_index("document")["nats"][number] == pytest.approx(expected, rel=1e-12)
    totals = rows.groupby("carried")["nats"].sum()
    assert totals.nunique() == 3


def test_stretches_lie_in_kept_documents_and_none_is_an_error(tmp_path, monkeypatch):
    text = np.arange(400).astype(np.uint8)
    text.tofile(tmp_path / "bytes.bin")
    documents = {"id": ["a", "b", "c"], "offset": [0, 150, 250], "length": [150, 100, 150]}
    pq.write_table(pa.table(documents), tmp_path / "documents.parquet")
    monkeypatch.setattr(carry, "read_encoded", lambda *_: {})
    found, document = carry.stretches(tmp_path, held_out(["a", "c"]), 4, 100)
    assert found.shape == (6, 4 * WINDOW + 1)
    assert document.tolist() == [0, 0, 0, 2, 2, 2]
    assert found[0].tolist() == text[: 4 * WINDOW + 1].tolist()
    assert found[3].tolist() == text[250 : 250 + 4 * WINDOW + 1].tolist()
    assert len(carry.stretches(tmp_path, held_out(["a", "c"]), 4, 2)[0]) == 2
    with pytest.raises(SomaError, match=r"the 193 bytes of 16 windows; lower products\.horizon\.windows"):
        carry.stretches(tmp_path, held_out(["b"]), 16, 2)


@pytest.mark.parametrize("p", [0.5, 0.9, 0.01])
def test_without_memory_of_the_cue_nothing_beats_chance(p):
    def forgetful(tokens):
        """Answer from everything but the first byte."""
        of_a = np.clip(p + 0.0001 * (tokens[:, 1] - 98.0), 0.001, 0.999)
        return -np.log(np.where(tokens[:, -1] == ord("A"), of_a, 1 - of_a))

    loss, correct = recall.recalled(forgetful, STREAM, 50, 20)
    assert loss >= CHANCE - 1e-12
    assert correct == 0.0


def test_one_that_is_given_the_answer_does():
    def remembers(tokens):
        return -np.log(np.where(tokens[:, 0] == tokens[:, -1], 0.9, 0.1))

    assert recall.recalled(remembers, STREAM, 50, 20) == (pytest.approx(-np.log(0.9)), 1.0)


def test_pairs_differ_in_the_cue_alone():
    first, second = recall.pairs(STREAM, 5, 9).reshape(2, 5, 10)
    assert (first[:, 1:-1] == second[:, 1:-1]).all()
    assert set(first[:, [0, -1]].ravel()) == {ord("A")}
    assert set(second[:, [0, -1]].ravel()) == {ord("B")}
    assert not np.array_equal(recall.pairs(STREAM, 5, 9, update=1), recall.pairs(STREAM, 5, 9))
    with pytest.raises(ValueError, match="need two"):
        recall.pairs(STREAM, 5, 1)


def test_the_gradient_is_the_one_that_differences_estimate():
    expert, _ = ensemble(1, 1, spec=SPEC)
    tokens = recall.pairs(STREAM, 8, 6)
    exact, saved = recall.answer_gradient(expert, tokens)
    step = 1e-4 * exact / exact.norm()
    wide = expert.to(torch.float64)
    copies = wide.copies(torch.cat([wide.theta + step, wide.theta - step]))
    plus, minus = recall.answer_losses(ReferenceEngine(), copies, tokens).mean(axis=1)
    assert (plus - minus) / 2e-4 == pytest.approx(float(exact.norm()), rel=1e-3)
    longer = recall.answer_gradient(expert, recall.pairs(STREAM, 8, 60))[1]
    assert longer > 5 * saved  # what backpropagation saves grows with the distance


@pytest.mark.parametrize("method", ["spsa", "bptt"])
def test_a_cell_learns_a_near_event_and_repeats(method):
    lesson = replace(LESSON, method=method, operations=4e8 if method == "spsa" else 2e8)
    engine = create("auto", "cpu")
    row = recall.best(engine, SPEC, [lesson], 16)
    assert row["loss"] < 0.8 * CHANCE
    assert row["operations"] <= lesson.operations
    few = replace(lesson, operations=4e6)
    assert recall.best(engine, SPEC, [few], 16) == recall.best(engine, SPEC, [few], 16)


def test_summaries_say_what_was_planted():
    plan = toy_plan()
    gain = {1: 0.0, 4: 0.02, 16: -0.03}
    rows = [
        {"run": run.id, "update": run.updates, "carried": c, "document": d, "bytes": 100,
         "nats": 200 + 10 * d - 100 * g}
        for run in plan.arm_runs["soma-n2"] for c, g in gain.items() for d in range(6)
    ]  # fmt: skip
    found = horizon.carried(plan, pd.DataFrame(rows)).set_index("carried")
    assert found["difference"].drop(1).to_dict() == pytest.approx({4: -0.02, 16: 0.03})
    assert found.loc[4, ["low", "high", "seed_high"]].tolist() == pytest.approx([-0.02] * 3)
    facts = {"correct": 1.0, "lr": 0.1, "updates": 3, "operations": 1.0, "working_bytes": 5, "parameters": 9}
    rows = [
        {"distance": 8, "method": "spsa", "seed": s, "loss": CHANCE - 0.2 - 0.01 * s, "chance": CHANCE} | facts
        for s in range(3)
    ]
    found = horizon.recalled(plan, pd.DataFrame(rows)).iloc[0]
    assert found["difference"] == pytest.approx(-0.21)
    assert found["seed_high"] < 0
