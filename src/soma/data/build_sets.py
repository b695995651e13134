"""Step 3, `split`: choose the windows of an evaluation set, and count exclusions by reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from soma.config.data import Data, HeldOut
from soma.data.encode import Role, read_encoded
from soma.data.screens import share_substring, shared_values
from soma.data.sets import EvaluationSet, ExternalSet, TestSet, ValidationSet, write_set
from soma.data.sources import same_ids
from soma.data.windows import TrainWindows, expert_validation_mask
from soma.errors import SomaError
from soma.files.tables import read_table
from soma.numerics.groups import rank_within
from soma.numerics.rng import Stream


def build_held_out(
    role: Literal["validation", "test"],
    data: Data,
    seed: int,
    train_directory: Path,
    role_directory: Path,
    output: Path,
) -> dict[str, Any]:
    """Choose the windows of the validation or test set.

    Documents are excluded if they are too short for a window, or share their id, exact text or normalised text with a
    training document; then at most `keep_per_group` documents of a group remain. Windows are allocated evenly to the
    documents, up to `per_document` each, and spaced evenly inside each document. A window that shares 128 bytes with an
    expert-validation window of training is moved within its own stretch of the document, and excluded if that does not
    help. Where documents must be selected, each one's random number (from seed, role and position) decides.

    Args:
        train_directory: encoded training text.
        role_directory: encoded text of the role.
        output: the parquet file.

    Returns:
        The manifest: `documents` and `windows` count the candidates, the exclusions (by reason) and the rest.

    Raises:
        SomaError: no window is left.
    """
    held = data.validation if role == "validation" else data.test
    read_encoded(role_directory, role)
    train = TrainWindows(train_directory, data.window)
    documents = read_table(role_directory / "documents.parquet")
    tally = _Tally.over(documents)
    quota = _deal_windows(role, data, held, seed, train_directory, documents, tally)

    lengths = documents.column("length").to_numpy()
    document = np.repeat(np.arange(len(lengths)), quota)
    place = np.arange(len(document)) - np.repeat(np.cumsum(quota) - quota, quota)
    offset = np.zeros(len(document), dtype=np.int64)
    expert_validation = np.flatnonzero(
        expert_validation_mask(len(train), data.expert_validation, Stream.named(seed, "expert-validation"))
    )
    clashing = np.arange(len(document))
    clashes = []
    for share in (0.5, 0.0, 1.0):  # middle, start and end of the window's own stretch
        d = document[clashing]
        offset[clashing] = spread_offsets(lengths[d], quota[d], place[clashing], data.window, share)
        windows = _read(role_directory, documents, d, offset[clashing], data.window)
        clashing = clashing[share_substring(windows, train, expert_validation)]
        clashes.append(len(clashing))
    clean = ~_as_mask(clashing, len(document))
    tally.leave_out("shared_substring", ~_as_mask(document[clean], len(lengths)))
    if not clean.any():
        reasons = ", ".join(f"{reason}: {count}" for reason, count in tally.left_out.items() if count)
        raise SomaError(
            f"The {role} set is empty: none of {len(lengths)} documents in {role_directory} is left ({reasons}; a "
            f"window needs {data.window + 1} bytes); lower `data.window` or name another source for `data.{role}`."
        )
    kind = ValidationSet if role == "validation" else TestSet
    return write_set(
        _gather(kind, role_directory, documents, document[clean], offset[clean], data),
        output,
        {
            "documents": tally.counts(),
            "windows": {
                "chosen": len(document),
                "moved": clashes[0] - clashes[-1],
                "shared_substring": clashes[-1],
                "kept": int(clean.sum()),
            },
            "how": {
                "seed": seed,
                "settings": held.model_dump(mode="json"),
                "expert_validation_windows": len(expert_validation),
                "train_sha256": train.sha256,
            },
        },
    )


@dataclass
class _Tally:
    """Remaining documents, and the number excluded for each reason; the first reason counts."""

    remaining: NDArray[np.bool_]
    left_out: dict[str, int]

    @classmethod
    def over(cls, documents: pa.Table) -> _Tally:
        return cls(np.ones(len(documents), dtype=np.bool_), {})

    def leave_out(self, reason: str, which: NDArray[np.bool_]) -> None:
        self.left_out[reason] = int((self.remaining & which).sum())
        self.remaining[which] = False

    def counts(self) -> dict[str, int]:
        return {"considered": len(self.remaining), **self.left_out, "kept": int(self.remaining.sum())}


def _deal_windows(
    role: Role, data: Data, held: HeldOut, seed: int, train_directory: Path, documents: pa.Table, tally: _Tally
) -> NDArray[np.int64]:
    """Screen the documents and return the number of windows for each; int64 (documents,)."""
    lengths = documents.column("length").to_numpy()
    tally.leave_out("too_short", lengths < data.window + 1)
    # Training documents differ by construction in id from documents held out by position.
    columns = ["sha256", "normalised_sha256"]
    if held.source is not None and same_ids(held.source, data.train):
        columns.insert(0, "id")
    shared = shared_values(train_directory, documents, columns)
    for column in columns:
        tally.leave_out(f"shared_{column}", shared[column])

    numbers = Stream.named(seed, "held-out", role).uniform(1, direction=documents.column("position").to_numpy())
    order = np.flatnonzero(tally.remaining)
    order = order[np.argsort(numbers[order, 0], kind="stable")]
    if held.keep_per_group is not None:
        groups = documents.column("group").to_numpy(zero_copy_only=False)[order]
        over = rank_within(np.unique(groups, return_inverse=True)[1]) >= held.keep_per_group
        tally.leave_out("over_group_limit", _as_mask(order[over], len(lengths)))
        order = order[~over]
    quota = np.zeros(len(lengths), dtype=np.int64)
    quota[order] = deal(np.minimum((lengths[order] - 1) // data.window, held.per_document), held.windows)
    tally.leave_out("not_needed", quota == 0)
    return quota


def deal(capacity: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Deal `total` windows to documents in rounds, one window each, in order; int64 of the shape of `capacity`.

    No document exceeds its capacity, and the counts of any two documents with room left differ by at most one.
    """
    rounds = np.arange(1, int(capacity.max(initial=0)) + 1)
    after = np.array([np.minimum(capacity, r).sum() for r in rounds], dtype=np.int64)
    full = int((after <= total).sum())
    dealt = np.minimum(capacity, full)
    waiting = np.flatnonzero(capacity > full)
    dealt[waiting[: total - int(dealt.sum())]] += 1
    return dealt


def spread_offsets(
    length: NDArray[np.int64],
    quota: NDArray[np.int64],
    place: NDArray[np.int64],
    window: int,
    share: float = 0.5,
) -> NDArray[np.int64]:
    """Return the offset of window number `place` among a document's `quota` windows.

    The document is cut into `quota` equal stretches, and the window lies inside its own, at `share` of the room there.
    Windows therefore overlap by at most the last target, and the last one ends inside the document; this requires
    length >= quota * window + 1.
    """
    room = (length - 1 - quota * window) / quota
    return place * window + np.floor((place + share) * room).astype(np.int64)


# --------------------------------------------------------------------------------------------------- external


def build_external(data: Data, train_directory: Path, corpus_directory: Path, output: Path) -> dict[str, Any]:
    """Cut the external corpus into windows that advance by `stride` inside a document.

    Incomplete last windows are dropped, as are documents with the exact or normalised text of a training document. At
    most `windows` of each split are kept, spread evenly over it.

    Args:
        train_directory: encoded training text.
        corpus_directory: encoded external text.
        output: the parquet file.

    Returns:
        The manifest, as in `build_held_out`.

    Raises:
        SomaError: no document is left.
    """
    window, external = data.window, data.external
    stride = external.stride or window - data.prefix
    read_encoded(corpus_directory, "external")
    documents = read_table(corpus_directory / "documents.parquet")
    lengths = documents.column("length").to_numpy()
    tally = _Tally.over(documents)
    tally.leave_out("too_short", lengths < window + 1)
    for column, shared in shared_values(train_directory, documents, ["sha256", "normalised_sha256"]).items():
        tally.leave_out(f"shared_{column}", shared)
    available = np.where(tally.remaining, (lengths - 1 - window) // stride + 1, 0)
    if not available.any():
        reasons = ", ".join(f"{reason}: {count}" for reason, count in tally.left_out.items() if count)
        raise SomaError(
            f"The external set is empty: none of {len(lengths)} documents in {corpus_directory} is left ({reasons}; a "
            f"window needs {window + 1} bytes); lower `data.window` or name another source for `data.external`."
        )
    document, offset = [], []
    splits = documents.column("split").to_numpy(zero_copy_only=False)
    for split in np.unique(splits):
        rows = np.flatnonzero(splits == split)
        ends = np.cumsum(available[rows])
        total = int(ends[-1])
        n = min(total, external.windows)
        wanted = (2 * np.arange(n) + 1) * total // (2 * max(n, 1))
        which = np.searchsorted(ends, wanted, side="right")
        document.append(rows[which])
        offset.append((wanted - (ends - available[rows])[which]) * stride)
    chosen = np.concatenate(document)
    order = np.argsort(chosen, kind="stable")
    chosen, at = chosen[order], np.concatenate(offset)[order]
    tally.leave_out("not_needed", ~_as_mask(chosen, len(lengths)))
    return write_set(
        _gather(ExternalSet, corpus_directory, documents, chosen, at, data),
        output,
        {
            "documents": tally.counts(),
            "windows": {"available": int(available.sum()), "kept": len(chosen)},
            "how": {"stride": stride, "settings": external.model_dump(mode="json")},
        },
    )


# ---------------------------------------------------------------------------------------------------- helpers


def _read(
    directory: Path, documents: pa.Table, rows: NDArray[np.int64], offset: NDArray[np.int64], window: int
) -> NDArray[np.uint8]:
    """Read W+1 bytes from `offset` on of each document; uint8 of shape (n, W+1)."""
    if not len(rows):
        return np.empty((0, window + 1), dtype=np.uint8)
    text: NDArray[np.uint8] = np.memmap(directory / "bytes.bin", np.uint8, "r")
    starts = documents.column("offset").to_numpy()[rows] + offset
    return np.asarray(np.lib.stride_tricks.sliding_window_view(text, window + 1)[starts])


def _gather(
    kind: type[EvaluationSet],
    directory: Path,
    documents: pa.Table,
    rows: NDArray[np.int64],
    offset: NDArray[np.int64],
    data: Data,
) -> EvaluationSet:
    about = documents.select(["id", "split", "group", "host"]).take(rows)
    names = {name: np.array(about.column(name).to_pylist(), dtype=np.str_) for name in about.column_names}
    return kind(
        windows=_read(directory, documents, rows, offset, data.window),
        document=np.unique(rows, return_inverse=True)[1].astype(np.int64),
        document_ids=names["id"],
        split=names["split"],
        group=names["group"],
        host=names["host"],
        offset=offset,
        prefix=data.prefix,
    )


def _as_mask(ids: NDArray[np.int64], n: int) -> NDArray[np.bool_]:
    mask = np.zeros(n, dtype=np.bool_)
    mask[ids] = True
    return mask
