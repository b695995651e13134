"""The command `soma sample`: text that may follow a prompt."""

from __future__ import annotations

import codecs
import sys

from soma.commands.model_io import load_model
from soma.errors import SomaError
from soma.inference import Sampling
from soma.inference.generation import Generation, generate


def sample(
    prompt: str,
    length: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    show_experts: bool,
    raw: bool,
    model: str,
    revision: str | None,
    k: int | None,
    device: str,
    threads: int,
) -> None:
    """Draw and print text, byte by byte."""
    sampling = Sampling(temperature, top_k, top_p, seed)
    if length < 0:
        raise SomaError(f"--length is {length}; give 0 or more bytes.")
    stream = load_model(model, revision, k, device, threads).generation(prompt.encode(errors="surrogateescape"))
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    speakers = _Speakers(stream) if show_experts else None
    for byte in generate(stream, sampling, length):
        if speakers:
            speakers.heard(byte[0])
        if raw:
            sys.stdout.buffer.write(byte)
            sys.stdout.buffer.flush()
        elif text := decoder.decode(byte):
            print(text, end="", flush=True)
    if not raw:
        print(decoder.decode(b"", final=True))
    if speakers:
        speakers.summary()


class _Speakers:
    """Experts used by a stream, and each one's share of the drawn bytes' probability."""

    def __init__(self, stream: Generation) -> None:
        self.stream = stream
        self.experts: tuple[int, ...] = ()
        self.shares: dict[int, float] = {}
        self.count = 0

    def heard(self, byte: int) -> None:
        """Record a drawn byte that the stream has not read yet."""
        if self.stream.experts != self.experts:
            self.experts = self.stream.experts
            names = ", ".join(map(str, self.experts))
            print(f"\n[byte {len(self.stream.text)}: experts {names}]", file=sys.stderr, flush=True)
        given = self.stream.experts_probabilities[:, byte]
        for expert, share in zip(self.experts, given / given.sum(), strict=True):
            self.shares[expert] = self.shares.get(expert, 0.0) + float(share)
        self.count += 1

    def summary(self) -> None:
        """Print each expert's share of the drawn bytes."""
        for expert, share in sorted(self.shares.items(), key=lambda item: -item[1]):
            print(f"expert {expert}: {share / self.count:.0%} of the drawn bytes", file=sys.stderr)
