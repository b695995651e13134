"""A rare early event: can a cell learn that its first byte decides one byte far ahead (not in the paper)?

A sequence is a cue, A or B, then noise, then a question mark, whose answer is the cue. Nothing but the answer is
scored, as a choice between A and B. Sequences come in pairs that differ in the cue alone, so whatever does not remember
it predicts the same for both and loses at least log 2 on average, exactly and not only in expectation:
-(log p + log(1 - p)) / 2 >= log 2. What lies below this chance level was remembered.

The same cell learns by SPSA and by backpropagation, from the same start on the same pairs, for the same operations
(2 n_pert forwards of a batch against 3). Both try the same rates; the choice is made on pairs of its own, and the
reported losses are of fresh ones.

Shapes: S pairs, B = 2 S sequences, T bytes from cue to answer, J directions, M parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from soma.estimators.bptt import fused
from soma.estimators.spsa import central_differences
from soma.forward.engine import Engine
from soma.forward.probes import Probes
from soma.measurements.inputs import Inputs
from soma.models import lstm
from soma.models.count import BPTT_FORWARDS, operations_per_token, spsa_forwards
from soma.models.experts import Experts
from soma.models.spec import LSTMSpec
from soma.numerics.rng import Stream
from soma.training.adam import Adam

CHANCE = float(np.log(2))
"""Loss in nats below which nothing without memory of the cue can come, averaged over pairs."""
CUES, NOISE, QUESTION = b"AB", b"abcd", b"?"
Method = Literal["spsa", "bptt"]
Answers = Callable[[NDArray[np.uint8]], NDArray[np.float64]]
"""Loss in nats [B] of the last byte of sequences [B, T + 1], as a choice between the cues."""

_ADAM = Adam(beta1=0.9, beta2=0.999, delta=1e-8, weight_decay=0.0)
_TOKENS = 512
"""Bytes of a batch at least, in whole pairs: a step of a short distance would otherwise be mostly overhead."""
_POSITIONS = 1 << 18
"""Positions whose hidden states an engine returns at once."""


@dataclass(frozen=True)
class Lesson:
    """What one run learns, and how."""

    method: Method
    distance: int
    """Bytes from cue to answer (T)."""
    lr: float
    eps: float
    n_pert: int
    pairs: int
    """Least number of pairs in a batch."""
    operations: float
    seed: int

    @property
    def sequences(self) -> int:
        return 2 * max(self.pairs, -(-_TOKENS // (2 * self.distance)))

    def updates(self, spec: LSTMSpec) -> int:
        """Return the number of updates that the operations pay for, at least one."""
        return max(1, int(self.operations // self.operations_of_update(spec)))

    def operations_of_update(self, spec: LSTMSpec) -> int:
        """Count the operations of an update: those of the body on every byte; decoding the answer is left out."""
        forwards = spsa_forwards(self.n_pert, "central") if self.method == "spsa" else BPTT_FORWARDS
        of_body = operations_per_token(spec) - 2 * spec.head_size
        return forwards * self.sequences * self.distance * of_body


def measure(at: Inputs) -> pd.DataFrame:
    """Measure one row per (distance, method, seed) with the chosen rate; both methods choose among the same rates."""
    p = at.product
    spec, out = LSTMSpec(p["width"], p["depth"], p["embedding"]), []
    for distance in p["distances"]:
        for method in get_args(Method):
            for seed in p["seeds"]:
                given = (method, distance)
                rest = (p["eps"], p["n_pert"], p["pairs"], p["operations"], seed)
                out.append(best(at.engine, spec, [Lesson(*given, lr, *rest) for lr in p["rates"]], p["tested"]))
    return pd.DataFrame(out)


def best(engine: Engine, spec: LSTMSpec, lessons: list[Lesson], tested: int) -> dict[str, Any]:
    """Learn by every lesson, choose by its loss on pairs of their own, and measure the chosen one on fresh pairs.

    Args:
        lessons: alike but for their rate.
        tested: pairs of each kind.

    Returns:
        `loss` and `correct`, of the answer; `lr`, the chosen rate; `updates` and `operations`; `working_bytes`, what
        an update holds beside the weights and the text: in SPSA the copies, their states and the hidden states that
        the engine returns at once, in backpropagation what it saves for the backward pass.
    """
    learned = [(lesson, *learn(engine, spec, lesson)) for lesson in lessons]
    chosen, expert, held = min(learned, key=lambda each: _test(engine, each[1], each[0], "choice", tested)[0])
    loss, correct = _test(engine, expert, chosen, "test", tested)
    updates = chosen.updates(spec)
    spent = updates * chosen.operations_of_update(spec)
    facts = {"distance": chosen.distance, "method": chosen.method, "seed": chosen.seed, "lr": chosen.lr}
    sizes = {"updates": updates, "operations": float(spent), "working_bytes": held, "parameters": expert.parameters}
    return facts | {"loss": loss, "chance": CHANCE, "correct": correct, "pairs": tested} | sizes


def pairs(stream: Stream, count: int, distance: int, update: int = 0) -> NDArray[np.uint8]:
    """Draw pairs of sequences that differ in the cue alone; uint8 [2 count, distance + 1], A's first, then B's.

    Raises:
        ValueError: if the distance leaves no place for the question mark.
    """
    if distance < 2:
        raise ValueError(f"a distance of {distance} bytes; the question mark and the answer need two")
    noise = np.frombuffer(NOISE, np.uint8)[stream.integers(count * (distance - 2), len(NOISE), update=update)]
    out = np.empty((2, count, distance + 1), np.uint8)
    out[:, :, 1:-2] = noise.reshape(count, distance - 2)
    out[:, :, -2] = QUESTION[0]
    for own, cue in zip(out, CUES, strict=True):
        own[:, 0] = own[:, -1] = cue
    return out.reshape(2 * count, distance + 1)


def recalled(answers: Answers, stream: Stream, count: int, distance: int) -> tuple[float, float]:
    """Return the mean loss of the answers of `count` pairs, and the share of pairs whose cues are told apart.

    Args:
        answers: the predictor: loss of the last target of every sequence.

    A pair is told apart if both its answers have a probability above one half.
    """
    losses = answers(pairs(stream, count, distance)).reshape(2, count)
    return float(losses.mean()), float((losses < CHANCE).all(axis=0).mean())


def _test(engine: Engine, expert: Experts, lesson: Lesson, purpose: str, count: int) -> tuple[float, float]:
    stream = Stream.named(lesson.seed, "recall", purpose)
    return recalled(lambda tokens: answer_losses(engine, expert, tokens)[0], stream, count, lesson.distance)


def answer_losses(engine: Engine, copies: Experts, tokens: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Compute the loss of the last target of tokens [B, T + 1] under every copy; float64 [P, B]."""
    out = []
    for own in _chunks(len(copies), tokens):
        part = copies[own]
        batch = np.ascontiguousarray(np.broadcast_to(tokens, (len(part), *tokens.shape)))
        last = engine.hidden(part, batch)[:, :, -1].cpu().double()
        out.append(
            torch.stack(
                [_choice(h, expert.head[0].double(), tokens) for h, expert in zip(last, part, strict=True)]
            ).numpy()
        )
    return np.concatenate(out)


def _choice(hidden: Tensor, head: Tensor, tokens: NDArray[np.uint8]) -> Tensor:
    """Compute the loss [B] of the last byte of tokens [B, T + 1], one of the cues, from hidden states [B, H]."""
    logits = hidden @ head[list(CUES)].T
    return F.cross_entropy(logits, torch.from_numpy((tokens[:, -1] == CUES[1]).astype(np.int64)), reduction="none")


def _chunks(copies: int, tokens: NDArray[np.uint8]) -> Iterator[slice]:
    """Yield slices of copies whose hidden states are returned at once."""
    at_once = max(1, _POSITIONS // tokens.size)
    return (slice(first, min(first + at_once, copies)) for first in range(0, copies, at_once))


def learn(engine: Engine, spec: LSTMSpec, lesson: Lesson) -> tuple[Experts, int]:
    """Train a body from a random start under a head as initialised; return the expert and its working bytes."""
    body, head = lstm.initialise(spec, Stream.named(lesson.seed, "recall", "init"))
    expert = Experts(spec, body[None], head[None])
    m, v = torch.zeros_like(expert.theta), torch.zeros_like(expert.theta)
    lr, batches = torch.tensor(lesson.lr), Stream.named(lesson.seed, "recall", "batch")
    held = 0
    for update in range(lesson.updates(spec)):
        tokens = pairs(batches, lesson.sequences // 2, lesson.distance, update)
        if lesson.method == "spsa":
            gradient, used = _differences(engine, expert, tokens, lesson, update)
        else:
            gradient, used = answer_gradient(expert, tokens)
        held = max(held, used)
        _ADAM.step(expert.theta, gradient, m, v, update + 1, lr)
    return expert, held


def _differences(
    engine: Engine, expert: Experts, tokens: NDArray[np.uint8], lesson: Lesson, update: int
) -> tuple[Tensor, int]:
    """Estimate the gradient of the mean answer loss [1, M] by central differences; also return the working bytes."""
    stream = Stream.named(lesson.seed, "recall", "probe")
    probes = Probes(expert.spec, stream, "sparse", update, (0,), range(lesson.n_pert))
    step = lesson.eps * torch.from_numpy(probes.signs()[0].astype(np.float32))
    copies = expert.copies(torch.cat([expert.theta + step, expert.theta - step]))
    losses = answer_losses(engine, copies, tokens).mean(axis=1)
    slopes = central_differences(losses.reshape(1, 2, -1).transpose(0, 2, 1), [lesson.eps])
    gradient = engine.combine(probes, np.ascontiguousarray(slopes) / lesson.n_pert)
    at_once = next(_chunks(len(copies), tokens)).stop
    states = at_once * len(tokens) * 2 * expert.spec.depth * expert.spec.width
    returned = at_once * len(tokens) * (tokens.shape[1] - 1) * expert.spec.embedding
    return torch.from_numpy(gradient.astype(np.float32)), 4 * (copies.theta.numel() + states + returned)


def answer_gradient(expert: Experts, tokens: NDArray[np.uint8]) -> tuple[Tensor, int]:
    """Backpropagate the mean answer loss of tokens [B, T + 1] through all T bytes.

    Returns:
        The gradient of the body [1, M], and the bytes that are saved for the backward pass.
    """
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    body = expert.theta.detach().requires_grad_()
    text = torch.from_numpy(tokens.astype(np.int64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden, _ = lstm.hidden(Experts(expert.spec, body, expert.head), text[None, :, :-1], recurrence=fused)
        loss = _choice(hidden[0, :, -1], expert.head[0], tokens).mean()
    loss.backward()
    assert body.grad is not None
    return body.grad, sum(saved.values())
