"""The command `soma route`: the experts that a text goes to."""

from __future__ import annotations

from soma.commands.model_io import load_model, open_text
from soma.errors import SomaError


def route(file: str, terms: int, model: str, revision: str | None, k: int | None, device: str, threads: int) -> None:
    """Print one line per chosen expert; only the routed prefix of the text is read."""
    if terms < 0:
        raise SomaError(f"--terms is {terms}; give 0 or more words.")
    ensemble = load_model(model, revision, k, device, threads)
    with open_text(file) as text:
        data = text.read(ensemble.prefix)
        if not data:
            raise SomaError("the text is empty; there is nothing to route.")
    chosen = ensemble.route(data)
    assert ensemble.router is not None
    print(f"routed on {chosen.read} byte{'s' if chosen.read > 1 else ''} (the model reads up to {ensemble.prefix})")
    print("expert  similarity  distance  words")
    for expert, cosine in zip(chosen.experts, chosen.similarities, strict=True):
        distance = max(0.0, 2 - 2 * cosine) ** 0.5  # between unit vectors
        words = " ".join(ensemble.router.terms(expert, terms))
        print(f"{expert:6}  {cosine:10.4f}  {distance:8.4f}  {words}")
