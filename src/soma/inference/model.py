"""Trained ensembles, ready to use: routed losses, scores, routes and samples.

Shapes: N experts, n windows, K experts averaged per window, W window bytes, R routed prefix bytes, S scored bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.evaluation.ensemble import mixture_losses
from soma.forward.registry import choose, create
from soma.inference import folder, hub
from soma.inference.generation import Generation, generate
from soma.inference.manifest import Manifest
from soma.inference.route import PrefixRouter
from soma.inference.runner import Runner, grouped
from soma.inference.sampling import Sampling
from soma.inference.score import Score, score_windows, windows_of
from soma.models.experts import Experts

_LOSSES = 1 << 22
"""Windows times their bytes, per call; the losses take 100 MB at the paper's k."""


@dataclass(frozen=True)
class Route:
    """The experts chosen for a text, nearest first."""

    experts: tuple[int, ...]
    similarities: tuple[float, ...]
    """Cosine between the text and each expert's cluster."""
    read: int
    """Number of bytes that routing read."""


@dataclass(frozen=True)
class Ensemble:
    """A trained ensemble: experts, their router, and settings for their use."""

    experts: Experts
    router: PrefixRouter | None
    """None if a router cannot use the experts' shards; then the first k experts serve every text."""
    k: int
    """Experts averaged."""
    prefix: int
    """R, bytes that are routed."""
    window: int
    """W, bytes of a window."""
    about: Manifest | None = None
    """`ensemble.json` of the folder; None for an ensemble built in code."""
    engine: str = "auto"
    """`cpu` (compiled kernel), `triton` (GPU kernels), `torch`, `evaluator` (bit-identical to evaluation), or `auto`,
    the fastest available."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        n = len(self.experts)
        if not 1 <= self.k <= n:
            raise SomaError(
                f"k = {self.k} experts cannot be averaged in an ensemble of {n}; choose k between 1 and {n}."
            )
        if not 1 <= self.prefix < self.window:
            raise SomaError(f"a prefix of {self.prefix} bytes must be shorter than the window of {self.window} bytes.")

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        revision: str | None = None,
        k: int | None = None,
        engine: str = "auto",
        device: str = "cpu",
    ) -> Ensemble:
        """Read a model that `soma export` wrote, and check every file against its hash before reading it.

        Args:
            path: its folder, or `owner/name` of a repository on the Hub if there is no such folder.
            revision: branch, tag or commit of the repository.
            k: number of experts to average, in place of the folder's default.

        Raises:
            SomaError: if it cannot be found or fetched, a file is missing or altered, k is out of range, or the engine
                or device is not available.
        """
        experts, router, about = folder.read(hub.local(path, revision))
        model = cls(
            experts,
            None if router is None else PrefixRouter(router),
            about.k if k is None else k,
            about.prefix,
            about.window,
            about,
            engine,
            device,
        )
        _ = model.runner  # raises here if the engine is missing
        return model

    def with_k(self, k: int) -> Ensemble:
        """Return the same ensemble, but averaging k experts."""
        return replace(self, k=k)

    @cached_property
    def runner(self) -> Runner:
        """The runner, with weights packed or placed on the device at first use."""
        return make_runner(self.experts, self.engine, self.device)

    def select(self, windows: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Choose the experts of each window [n, at least R] from its first R bytes; int64 [n, K], nearest first."""
        if self.router is None:
            return np.broadcast_to(np.arange(self.k), (len(windows), self.k))
        return self.router.route(windows, self.prefix, self.k)

    def losses(self, windows: NDArray[np.uint8], selected: NDArray[np.integer] | None = None) -> NDArray[np.float64]:
        """Compute nats of every scored byte under the mean probability of the selected experts, as in
        `soma.evaluation.ensemble`.

        Args:
            windows: bytes [n, T + 1] with T > R, each read from the zero state.
            selected: experts of each window, [n, K]; None routes the windows.

        Returns:
            float64 [n, T - R].
        """
        scored = windows.shape[1] - 1 - self.prefix
        out = np.empty((len(windows), scored))
        together = max(1, _LOSSES // windows.shape[1])
        for first in range(0, len(windows), together):
            some = windows[first : first + together]
            chosen = self.select(some) if selected is None else selected[first : first + together]
            out[first : first + together] = self._run(some, chosen, scored)
        return out

    def _run(self, windows: NDArray[np.uint8], selected: NDArray[np.integer], scored: int) -> NDArray[np.float64]:
        expert, sequence, place = grouped(selected)
        each = np.empty((selected.size, scored))
        each[place] = self.runner.losses(expert, sequence, windows, scored)
        return mixture_losses(each.reshape(*selected.shape, scored))

    def score(self, text: str | bytes | IO[bytes]) -> Score:
        """Compute nats and bits per byte of a text, with an interval over its windows.

        The text is read like an evaluation set: in windows of W + 1 bytes, each from the zero state. The first R bytes
        of a window are routed and not scored, and windows overlap so that every later byte is scored once. The last
        window may be shorter. An open binary file is read to its end in bounded memory.

        Raises:
            SomaError: if the text is too short to score one byte, or the weights give no numbers.
        """
        if isinstance(text, str):
            text = text.encode()
        stream = io.BytesIO(text) if isinstance(text, bytes) else text
        return score_windows(self.losses(windows) for windows in windows_of(stream, self.window, self.prefix))

    def route(self, text: str | bytes, k: int | None = None) -> Route:
        """Choose the experts of a text from its first R bytes, or fewer if it is shorter.

        Raises:
            SomaError: if the ensemble has no router, or k is out of range.
        """
        if self.router is None:
            raise SomaError(
                "this ensemble has no router: its experts share one shard or were trained on random shards."
            )
        data = (text.encode() if isinstance(text, str) else text)[: self.prefix]
        experts = self.router.route([data], self.prefix, self.k if k is None else k)[0].tolist()
        similarity = self.router.similarities(data)
        return Route(tuple(experts), tuple(float(similarity[e]) for e in experts), len(data))

    def generation(self, prompt: str | bytes = b"") -> Generation:
        """Start a stream that has read `prompt` and predicts the next byte."""
        return Generation(
            self.runner, self.router, self.k, self.prefix, prompt.encode() if isinstance(prompt, str) else prompt
        )

    def sample(
        self,
        prompt: str | bytes = b"",
        length: int | None = None,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Iterator[bytes]:
        """Generate bytes after the prompt, one by one; without a length, endlessly.

        Args:
            temperature: values below 1 favour likely bytes; 0 takes the likeliest.
            top_k: draw only among the k likeliest bytes.
            top_p: draw only among the fewest likeliest bytes that reach this probability.
            seed: the same seed and settings give the same bytes (on one kind of processor).
        """
        return generate(self.generation(prompt), Sampling(temperature, top_k, top_p, seed), length)


RUNNERS = {
    "cpu": "soma.inference.compiled:CompiledRunner",
    "triton": "soma.inference.triton_runner:TritonRunner",
    "torch": "soma.inference.batched:BatchedRunner",
    "evaluator": "soma.inference.evaluator:EvaluatorRunner",
}
"""Location of each runner's class, imported on use so that measurements with one runner do not depend on another."""


def make_runner(experts: Experts, engine: str, device: str) -> Runner:
    """Create the runner named `engine`; `auto` means the device's kernels if available, else torch.

    Raises:
        SomaError: if the engine or the device is not available here.
    """
    engine, runner = choose(RUNNERS, engine, device, _best, setting="the ")
    if engine == "cpu" and device != "cpu":
        raise SomaError(f"the engine is cpu, which does not run on {device}; use auto or torch.")
    where: list[Any] = [] if engine == "cpu" else [torch.device(device)]
    if engine == "evaluator":
        where = [create("auto", device), *where]
    made: Runner = runner(experts, *where)
    return made


def _best(device: str) -> str:
    """Return the name of the fastest available runner."""
    if device.startswith("cuda") and find_spec("triton") is not None:
        return "triton"
    return "cpu" if device == "cpu" and resolve_name("soma.inference.compiled:available")() else "torch"
