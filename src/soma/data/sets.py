"""Evaluation sets: windows of W+1 bytes (W inputs, each with its target) that stay inside one document.

There are three types for three uses. Validation chooses settings; test and external sets are read once, by evaluation.
A file records its type, and opening it as another type raises.

Layout: `<name>.parquet`, one row per window with columns window (W+1 bytes), document (consecutive number),
document_id, split, group, host, offset (bytes into the document), and role and prefix in the schema's metadata;
`<name>.json` beside it holds the file's hash, which is checked on opening, and counts the candidates, the exclusions
(by reason) and the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from soma.errors import SomaError
from soma.files.atomic import atomic_path, read_json, write_json
from soma.files.hashes import check_files, describe_files

FORMAT = 1


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Evaluation windows, in the order of their documents.

    Attributes:
        windows: uint8 (n, W+1); columns [:-1] are inputs and [1:] targets.
        document: int64 (n,), consecutive number of the window's document, for grouping.
        document_ids: (n,) its id in the source.
        split: (n,) its split.
        group: (n,) the row group or topic that it came from.
        host: (n,) its web host.
        offset: int64 (n,) start of the window, bytes into the document.
        prefix: bytes that the router observes; targets of the inputs from `prefix` on are scored.
    """

    windows: NDArray[np.uint8]
    document: NDArray[np.int64]
    document_ids: NDArray[np.str_]
    split: NDArray[np.str_]
    group: NDArray[np.str_]
    host: NDArray[np.str_]
    offset: NDArray[np.int64]
    prefix: int

    role: ClassVar[str]

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.windows)

    @property
    def window(self) -> int:
        """W, in bytes."""
        return int(self.windows.shape[1]) - 1

    @property
    def scored(self) -> int:
        """Number of scored targets in the whole set: W - prefix per window."""
        return len(self) * (self.window - self.prefix)


class ValidationSet(EvaluationSet):
    """Ensemble-validation set, used to choose settings."""

    role = "validation"


class TestSet(EvaluationSet):
    """Test set, read once, by evaluation alone."""

    __test__ = False  # not a pytest class
    role = "test"


class ExternalSet(EvaluationSet):
    """External set, of a corpus that training never uses; read once, by evaluation alone."""

    role = "external"


def open_validation(path: Path) -> ValidationSet:
    """Open the ensemble-validation set; raise a `SomaError` if the file holds another set or is damaged."""
    return _open(path, ValidationSet)


def open_test(path: Path) -> TestSet:
    """Open the test set; raise a `SomaError` if the file holds another set or is damaged."""
    return _open(path, TestSet)


def open_external(path: Path) -> ExternalSet:
    """Open the external set; raise a `SomaError` if the file holds another set or is damaged."""
    return _open(path, ExternalSet)


def write_set(evaluation: EvaluationSet, output: Path, details: Mapping[str, Any]) -> dict[str, Any]:
    """Write a set and, beside it, its manifest: role, sizes and the given details (counts, selection)."""
    n, size = evaluation.windows.shape
    table = pa.table(
        {
            "window": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(size), n, [None, pa.py_buffer(np.ascontiguousarray(evaluation.windows))]
            ),
            "document": evaluation.document,
            "document_id": evaluation.document_ids.tolist(),
            "split": evaluation.split.tolist(),
            "group": evaluation.group.tolist(),
            "host": evaluation.host.tolist(),
            "offset": evaluation.offset,
        }
    ).replace_schema_metadata({"soma.role": evaluation.role, "soma.prefix": str(evaluation.prefix)})
    with atomic_path(output) as path:
        pq.write_table(table, path, compression="zstd")
    manifest = {
        "format": FORMAT,
        "role": evaluation.role,
        "window": evaluation.window,
        "prefix": evaluation.prefix,
        "scored": evaluation.scored,
        "files": describe_files(output.parent, [output.name]),
        **details,
    }
    write_json(output.with_suffix(".json"), manifest)
    return manifest


_Set = TypeVar("_Set", bound=EvaluationSet)


def _open(path: Path, kind: type[_Set]) -> _Set:
    manifest = read_json(path.with_suffix(".json"))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or path.name not in manifest.get("files", {}):
        raise SomaError(f"{path} is not an evaluation set of this version; build it again.")
    check_files(path.parent, manifest["files"])
    table = pq.read_table(path)
    about = table.schema.metadata
    role = about[b"soma.role"].decode()
    if role != kind.role:
        raise SomaError(
            f"{path} holds the set `{role}` where the {kind.role} set is expected; give each step its own file."
        )
    column = table.column("window").combine_chunks()
    size = column.type.byte_width
    windows = np.frombuffer(column.buffers()[1], np.uint8, len(table) * size, column.offset * size)
    windows = windows.reshape(len(table), size)
    windows.flags.writeable = False

    def strings(name: str) -> NDArray[np.str_]:
        return np.array(table.column(name).to_pylist(), dtype=np.str_)

    return kind(
        windows=windows,
        document=table.column("document").to_numpy().astype(np.int64),
        document_ids=strings("document_id"),
        split=strings("split"),
        group=strings("group"),
        host=strings("host"),
        offset=table.column("offset").to_numpy().astype(np.int64),
        prefix=int(about[b"soma.prefix"]),
    )
