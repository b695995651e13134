"""Loss when state is carried over several windows of a document (not in the paper, whose windows all start from zero).

Stretches of held-out documents are read with the state zeroed every c windows. For every c the same bytes are scored,
those after each window's routed prefix, by the same experts, which the first window's prefix chooses; so c alone
differs, and c = 1 is the protocol of every other loss of this package. Only evaluation carries state: the kernels of
training start every sequence from zero.

Shapes: S stretches, C windows in a stretch, W bytes in a window, R routed prefix bytes, K averaged experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from soma.data.encode import read_encoded
from soma.data.sets import ValidationSet, open_validation
from soma.errors import SomaError
from soma.evaluation.ensemble import TokenLosses, lstm_losses, mixture_losses, selected_losses
from soma.files.tables import read_table
from soma.measurements.inputs import Inputs

_AT_ONCE = 16  # stretches whose losses are held in memory at once


def measure(at: Inputs) -> pd.DataFrame:
    """Measure one row per (run, carried windows, document), at the end of every run."""
    data = open_validation(at.results / "sets/validation.parquet")
    counts = at.product["windows"]
    text, document = stretches(at.results / "corpus/validation", data, max(counts), at.product["stretches"])
    out = []
    for opened, k in zip(at.opened(), at.settings["active"], strict=True):
        run = opened.run
        router = at.routers.router(run)
        first = text[:, : data.window + 1]
        order = np.arange(k)[None] if router is None else router.route(first, data.prefix, k, run.experts)
        selected = np.broadcast_to(order, (len(text), k))
        rows = carried_losses(lstm_losses(at.engine, opened.experts()), text, selected, document, counts, data)
        out.append(rows.assign(run=run.id, seed=run.seed, update=run.updates, k=k))
    return pd.concat(out, ignore_index=True)


def stretches(
    corpus: Path, data: ValidationSet, windows: int, most: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:  # fmt: skip
    """Read stretches of C windows of the documents of the ensemble-validation set, evenly spread over all there are.

    Args:
        corpus: encoded validation text.
        windows: C.
        most: largest number of stretches.

    Returns:
        Bytes [S, C W + 1] and the number of each stretch's document [S].

    Raises:
        SomaError: if no document is long enough.
    """
    read_encoded(corpus, "validation")
    size = windows * data.window
    kept = set(data.document_ids.tolist())
    documents = read_table(corpus / "documents.parquet").select(["id", "offset", "length"]).to_pylist()
    starts = [
        (number, row["offset"] + first)
        for number, row in enumerate(documents)
        if row["id"] in kept
        for first in range(0, row["length"] - size, size)
    ]
    if not starts:
        raise SomaError(
            f"no validation document has the {size + 1:,} bytes of {windows} windows; lower products.horizon.windows."
        )
    count = min(most, len(starts))
    chosen = [starts[(2 * i + 1) * len(starts) // (2 * count)] for i in range(count)]
    text: NDArray[np.uint8] = np.memmap(corpus / "bytes.bin", np.uint8, "r")
    rows = np.stack([text[start : start + size + 1] for _, start in chosen])
    return rows, np.array([number for number, _ in chosen])


def carried_losses(
    token_losses: TokenLosses,
    text: NDArray[np.uint8],
    selected: NDArray[np.integer],
    document: NDArray[np.int64],
    counts: Sequence[int],
    data: ValidationSet,
) -> pd.DataFrame:
    """Sum the losses of each document's stretches for every number of windows over which state is carried.

    Args:
        text: bytes [S, C W + 1].
        selected: experts of every stretch, [S, K].
        document: document of every stretch, [S].
        counts: numbers of windows; each divides C.
        data: the set whose window and prefix are used.

    Returns:
        One row per (carried, document): `nats` summed over the scored `bytes`.
    """
    window, prefix = data.window, data.prefix
    size, out = text.shape[1] - 1, []
    for carried in counts:
        span = carried * window
        pieces = size // span
        for first in range(0, len(text), _AT_ONCE):
            own = slice(first, first + _AT_ONCE)
            reads = np.lib.stride_tricks.sliding_window_view(text[own], span + 1, axis=1)[:, ::span]
            rows = np.ascontiguousarray(reads.reshape(-1, span + 1))
            losses = mixture_losses(selected_losses(token_losses, rows, np.repeat(selected[own], pieces, axis=0), 0))
            scored = losses.reshape(-1, size // window, window)[:, :, prefix:]
            nats = scored.sum(axis=(1, 2))
            bytes_ = scored.shape[1] * scored.shape[2]
            out.append(pd.DataFrame({"carried": carried, "document": document[own], "nats": nats, "bytes": bytes_}))
    return pd.concat(out).groupby(["carried", "document"], as_index=False).sum()
