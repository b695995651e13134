"""The commands `soma score`, `soma sample` and `soma route`."""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isnan
from pathlib import Path

import numpy as np
import torch

from soma.errors import SomaError
from soma.inference import Ensemble, Sampling, Score
from soma.inference.generation import Generation, generate
from soma.inference.score import total


def score(files: Sequence[str], model: Path, k: int | None, device: str, threads: int, as_json: bool) -> None:
    """Print one line per file and, with several files, one for all."""
    ensemble = _load(model, k, device, threads)
    rows: list[tuple[str, Score]] = []
    with _output():
        for name in files:
            data = _read(name)
            try:
                rows.append((name, ensemble.score(data)))
            except SomaError as error:
                raise SomaError(f"{_title(name)}: {error}") from None
        if len(rows) > 1:
            rows.append(("all", total([result for _, result in rows])))
        lines = _score_json(rows) if as_json else _score_table(rows)
        print("\n".join(lines))


def sample(
    prompt: str,
    length: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int,
    show_experts: bool,
    raw: bool,
    model: Path,
    k: int | None,
    device: str,
    threads: int,
) -> None:
    """Draw and print text, byte by byte."""
    sampling = Sampling(temperature, top_k, top_p, seed)
    if length < 0:
        raise SomaError(f"--length is {length}; give a number of bytes from 0 up.")
    stream = _load(model, k, device, threads).generation(prompt.encode(errors="surrogateescape"))
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    speakers = _Speakers(stream) if show_experts else None
    with _output():
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


def route(file: str, terms: int, model: Path, k: int | None, device: str, threads: int) -> None:
    """Print one line per chosen expert."""
    ensemble = _load(model, k, device, threads)
    data = _read(file)
    if not data:
        raise SomaError(f"{_title(file)} is empty; there is nothing to route.")
    chosen = ensemble.route(data)
    assert ensemble.router is not None
    with _output():
        print(f"routed on {chosen.read} byte{'s' if chosen.read > 1 else ''} (the model reads up to {ensemble.prefix})")
        print("expert  similarity  distance  words")
        for expert, cosine in zip(chosen.experts, chosen.similarities, strict=True):
            distance = max(0.0, 2 - 2 * cosine) ** 0.5  # between unit vectors
            words = " ".join(ensemble.router.terms(expert, terms))
            print(f"{expert:6}  {cosine:10.4f}  {distance:8.4f}  {words}")


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
            print(f"expert {expert}: {share / self.count:.0%} of what was drawn", file=sys.stderr)


def _load(model: Path, k: int | None, device: str, threads: int) -> Ensemble:
    if threads < 1:
        raise SomaError(f"--threads is {threads}; give a number from 1 up.")
    torch.set_num_threads(threads)
    return Ensemble.load(model, k=k, device=device)


def _read(name: str) -> bytes:
    """Return the bytes of a file, or of standard input for `-`."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise SomaError(
            f"{name} cannot be read ({error.strerror}); name a text file, or - for standard input."
        ) from None


def _title(name: str) -> str:
    return "standard input" if name == "-" else name


def _score_table(rows: Sequence[tuple[str, Score]]) -> list[str]:
    width = max(4, *(len(_title(name)) for name, _ in rows))
    lines = [
        f"{'file':{width}}  {'bytes':>10}  {'windows':>7}  {'nats/byte':>9}  {'bits/byte':>9}  95 % interval (bits)"
    ]
    for name, result in rows:
        low, high = (x / float(np.log(2)) for x in (result.low, result.high))
        interval = "one window: none" if isnan(low) else f"{low:.4f} to {high:.4f}, over {result.unit}"
        numbers = f"{result.bytes:10}  {result.windows:7}  {result.nats:9.4f}  {result.bits:9.4f}"
        lines.append(f"{_title(name):{width}}  {numbers}  {interval}")
    return lines


def _score_json(rows: Sequence[tuple[str, Score]]) -> list[str]:
    return [
        json.dumps(
            {
                "file": name,
                "nats_per_byte": result.nats,
                "low": None if isnan(result.low) else result.low,
                "high": None if isnan(result.high) else result.high,
                "bits_per_byte": result.bits,
                "bytes": result.bytes,
                "windows": result.windows,
                "interval_over": result.unit,
            }
        )
        for name, result in rows
    ]


@contextmanager
def _output() -> Iterator[None]:
    """End the command without an error if the reader closes the pipe early (`| head`)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
