"""Trained ensembles as a model of EleutherAI's lm-evaluation-harness; needs the extra `harness`.

    lm_eval.simple_evaluate(model=HarnessModel("models/soma-n8"), tasks=[...])

Requests are answered one by one, as byte streams (`soma.inference.generation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import log
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from soma.inference.generation import generate
from soma.inference.model import Ensemble
from soma.inference.sampling import Sampling

_LENGTH = 256
"""Bytes that are generated at most, if a task does not say."""


class HarnessModel(LM):  # type: ignore[misc]  # lm_eval has no types
    """An ensemble that answers the three kinds of requests of the harness; its tokens are bytes."""

    def __init__(self, model: Ensemble | str | Path) -> None:
        """Take an ensemble, its folder, or `owner/name` on the Hub; errors as of `Ensemble.load`."""
        super().__init__()
        self.model = model if isinstance(model, Ensemble) else Ensemble.load(model)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return the log-likelihood of every continuation, in nats, and whether each of its bytes is the likeliest."""
        return [self._continuation(*request.args) for request in requests]

    def _continuation(self, context: str, continuation: str) -> tuple[float, bool]:
        stream = self.model.generation(context)
        nats, greedy = 0.0, True
        for byte in continuation.encode():
            probabilities = stream.probabilities
            nats += log(probabilities[byte]) if probabilities[byte] > 0 else float("-inf")
            greedy &= bool(probabilities.argmax() == byte)
            stream.push(byte)
        return nats, greedy

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log-likelihood of every text, in nats, such that its mean per byte is that of `Ensemble.score`.

        The first bytes of a text are routed and not scored; here they count as much as the mean of the others, since
        the harness divides by all bytes.

        Raises:
            SomaError: if a text is too short to score one byte.
        """
        texts = [request.args[0].encode() for request in requests]
        return [-self.model.score(text).nats * len(text) for text in texts]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the text that is drawn after every context, up to the first of its stops, which is left out.

        Of a request's settings, `until`, `max_gen_toks` (bytes), `do_sample`, `temperature`, `top_k` and `top_p` are
        read; without `do_sample` every byte is the likeliest.
        """
        return [self._until(*request.args) for request in requests]

    def _until(self, context: str, settings: dict[str, Any]) -> str:
        until = settings.get("until") or []
        stops = [stop.encode() for stop in ([until] if isinstance(until, str) else until) if stop]
        temperature = settings.get("temperature", 1.0) if settings.get("do_sample") else 0.0
        sampling = Sampling(temperature, settings.get("top_k"), settings.get("top_p"))
        drawn = bytearray()
        for byte in islice(
            generate(self.model.generation(context), sampling, None), settings.get("max_gen_toks", _LENGTH)
        ):
            drawn += byte
            if ends := [stop for stop in stops if drawn.endswith(stop)]:
                del drawn[-max(map(len, ends)) :]
                break
        return drawn.decode(errors="replace")
