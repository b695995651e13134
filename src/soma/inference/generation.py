"""Generation byte by byte: the states of a stream's experts, and their predictions of the next byte.

Routing needs the first R bytes of a text. Until then, a stream is routed again after each new byte, on the bytes so
far. When the choice changes, the chosen experts read the text from the zero state, so the stream is always in the state
of a full forward pass of its experts. From byte R on, the choice is final, as in evaluation, and states are carried on
without a reset; beyond the training window, this is extrapolation.

A recurrent network needs a byte to start from, so an empty prompt is read as one line feed, which is not part of the
generated text. It is routed as an empty text.

Shapes: K experts, V = 256 bytes, R routed prefix bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.inference.route import PrefixRouter
from soma.inference.runner import Runner
from soma.inference.sampling import Sampling

START = b"\n"
"""Read before an empty prompt, since documents of the training text follow line feeds."""


class Generation:
    """A stream of bytes with the states of the experts that read it."""

    def __init__(self, runner: Runner, router: PrefixRouter | None, k: int, prefix: int, prompt: bytes) -> None:
        self._runner, self._router, self._k, self._prefix = runner, router, k, prefix
        self._opening = b"" if prompt else START
        self.text = bytearray(prompt)
        self.experts = self._choose()
        self._read_all()

    @property
    def experts_probabilities(self) -> NDArray[np.float64]:
        """Next-byte probabilities under each expert, [K, V]."""
        return self._each

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Next-byte probabilities under the ensemble, [V].

        Raises:
            SomaError: if a probability is not a number.
        """
        mean: NDArray[np.float64] = self._each.mean(axis=0)
        if not np.isfinite(mean).all():
            raise SomaError(
                "the experts gave probabilities that are not numbers; their weights are damaged or diverged."
            )
        return mean

    def push(self, byte: int) -> None:
        """Append a byte to the stream and let the experts read it."""
        self.text.append(byte)
        if len(self.text) <= self._prefix:
            experts = self._choose()
            if experts != self.experts:
                self.experts = experts
                self._read_all()
                return
        self._each = self._read(bytes([byte]))

    def _choose(self) -> tuple[int, ...]:
        if self._router is None:
            return tuple(range(self._k))
        return tuple(self._router.route([bytes(self.text[: self._prefix])], self._prefix, self._k)[0].tolist())

    def _read_all(self) -> None:
        self._state: Any = self._runner.start(self._k)
        self._each = self._read(self._opening + bytes(self.text))

    def _read(self, text: bytes) -> NDArray[np.float64]:
        tokens = np.broadcast_to(np.frombuffer(text, np.uint8), (self._k, len(text)))
        return self._runner.advance(np.array(self.experts), tokens, self._state)


def generate(stream: Generation, sampling: Sampling, length: int | None) -> Iterator[bytes]:
    """Draw bytes and let the stream read them, yielding each before computing the next."""
    position = 0
    while length is None or position < length:
        byte = sampling.draw(stream.probabilities, position)
        yield bytes([byte])
        position += 1
        if position != length:
            stream.push(byte)
