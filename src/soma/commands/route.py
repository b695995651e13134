"""The command `soma route`: the experts that a text goes to."""

from __future__ import annotations

from pathlib import Path

from soma.commands.model_io import load_model, output, read_text, title
from soma.errors import SomaError


def route(file: str, terms: int, model: Path, k: int | None, device: str, threads: int) -> None:
    """Print one line per chosen expert."""
    ensemble = load_model(model, k, device, threads)
    data = read_text(file)
    if not data:
        raise SomaError(f"{title(file)} is empty; there is nothing to route.")
    chosen = ensemble.route(data)
    assert ensemble.router is not None
    with output():
        print(f"routed on {chosen.read} byte{'s' if chosen.read > 1 else ''} (the model reads up to {ensemble.prefix})")
        print("expert  similarity  distance  words")
        for expert, cosine in zip(chosen.experts, chosen.similarities, strict=True):
            distance = max(0.0, 2 - 2 * cosine) ** 0.5  # between unit vectors
            words = " ".join(ensemble.router.terms(expert, terms))
            print(f"{expert:6}  {cosine:10.4f}  {distance:8.4f}  {words}")
