"""`ensemble.json`, typed: sizes, origin and files of a model's folder, which bound all that is read from it.

A folder may come from a stranger. Its list of files is fixed, so no name in it becomes a path, and the sizes here give
the shape and dtype of every tensor and the largest size of every file before one is opened.

Weights are named, a tensor for every matrix and gain of every expert (`experts.3.blocks.0.lstm_input`), and a head for
each or for all. Format 2, which earlier versions wrote, has two arrays for all experts instead; it is still read.

Shapes: N experts, M parameters of a body, V = 256 bytes, H embedding width, W words, D dimensions of features.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from soma.config.base import Line, Model
from soma.errors import SomaError
from soma.files.hashes import sha256_json
from soma.models.spec import VOCABULARY, LSTMSpec
from soma.runs import Iterate

FORMAT = 3
MANIFEST = "ensemble.json"
WEIGHTS = "weights.safetensors"
ROUTING = "routing.safetensors"
WORDS = "vocabulary.json"
HEAD = "head"

_MANIFEST_BYTES = 1 << 20
_HEADER_BYTES = 1 << 16
"""Bytes of a file of tensors beside its numbers and what it says about each of them, at most."""
_TENSOR_BYTES = 1 << 8
"""Bytes that a file says about one tensor, at most."""
_TENSORS = 1 << 18
"""Tensors of a file, at most; the paper's 256 experts have 4,000."""
_WORD_BYTES = 256
"""Mean length of a word of the vocabulary, at most."""
_ITEM_BYTES = {"F32": 4, "I64": 8}

Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Dtype, as safetensors names it, and shape of every tensor of a file."""

Width = Annotated[int, Field(ge=1, le=1 << 14)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Strict(Model):
    model_config = ConfigDict(strict=True)  # JSON has types: "3" and 3.0 are no whole numbers


class Routing(_Strict):
    """Sizes of a router, and how it chooses."""

    words: Count
    """W, words of the vocabulary."""
    dims: Width
    """D, dimensions of the features."""
    assignment: Literal["nearest", "priced"]

    def tensors(self, experts: int) -> Shapes:
        """Return the tensors of ROUTING."""
        return {
            "idf": ("F32", (self.words,)),
            "components": ("F32", (self.dims, self.words)),
            "mean": ("F32", (self.dims,)),
            "centroids": ("F32", (experts, self.dims)),
            "prices": ("F32", (experts,)),
            "sizes": ("I64", (experts,)),
        }


class File(_Strict):
    """Size and hash of a file."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Hash


class Manifest(_Strict):
    """Content of `ensemble.json`."""

    kind: Literal["ensemble"]
    format: Literal[2, 3]
    width: Width
    depth: Annotated[int, Field(ge=1, le=1 << 8)]
    embedding: Width
    experts: Annotated[int, Field(ge=1, le=1 << 16)]
    """N."""
    shared_head: bool
    parameters: int
    """Number of all parameters; a shared head counts once."""
    k: int
    """Experts averaged by default."""
    prefix: int
    """Routed bytes."""
    window: Count
    """Bytes of a whole window."""
    run: Line
    """Run that the weights come from, and which of its weights they are."""
    iterate: Iterate
    update: Annotated[int, Field(ge=0, le=1 << 62)]
    routing: Routing | None
    """None if experts are not chosen by a router."""
    sources: dict[Line, str | None]
    """What weights and router were read from, with hashes."""
    files: dict[str, File]
    """Every file but the model card, which people may edit, and `ensemble.json` itself."""
    id: Hash
    """Hash of all this."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.k not in range(1, self.experts + 1):
            raise ValueError(f"`k` is {self.k}, which is not between 1 and the {self.experts} experts")
        if self.prefix not in range(1, self.window):
            raise ValueError(f"`prefix` is {self.prefix}, which is not between 1 and the window of {self.window} bytes")
        if self.experts * (len(self.spec.layout) + 1) > _TENSORS:
            raise ValueError(f"`experts` and `depth` give more than {_TENSORS:,} tensors")
        parameters = self.experts * self.spec.size + (1 if self.shared_head else self.experts) * self.spec.head_size
        if self.parameters != parameters:
            raise ValueError(f"`parameters` is {self.parameters} where the sizes give {parameters}")
        limits = self._limits()
        if self.files.keys() != limits.keys():
            raise ValueError(f"`files` must list {', '.join(limits)} and nothing else")
        for name, known in self.files.items():
            if known.bytes > limits[name]:
                raise ValueError(f"{name} has {known.bytes:,} bytes where the sizes allow {limits[name]:,}")
        return self

    @property
    def spec(self) -> LSTMSpec:
        return LSTMSpec(self.width, self.depth, self.embedding)

    def tensors(self) -> dict[str, Shapes]:
        """Return the tensors of every file that holds some."""
        weights = {name: ("F32", shape) for name, shape in self._weights()}
        return {WEIGHTS: weights} | ({ROUTING: self.routing.tensors(self.experts)} if self.routing else {})

    def _weights(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of every tensor of WEIGHTS."""
        spec, head = self.spec, (VOCABULARY, self.embedding)
        if self.format == 2:
            yield "bodies", (self.experts, spec.size)
            yield "heads", (1 if self.shared_head else self.experts, *head)
            return
        for expert in range(self.experts):
            for slot in spec.layout:
                yield tensor_name(expert, slot.name), slot.shape
            if not self.shared_head:
                yield tensor_name(expert, HEAD), head
        if self.shared_head:
            yield HEAD, head

    def _limits(self) -> dict[str, int]:
        """Return the largest number of bytes of every file."""
        limits = {
            name: _HEADER_BYTES
            + sum(_TENSOR_BYTES + _ITEM_BYTES[dtype] * prod(shape) for dtype, shape in shapes.values())
            for name, shapes in self.tensors().items()
        }
        return limits | ({WORDS: _HEADER_BYTES + _WORD_BYTES * self.routing.words} if self.routing else {})

    @classmethod
    def seal(cls, **record: Any) -> Manifest:
        """Return the manifest of these values, with the hash of their content.

        Raises:
            SomaError: if a value cannot stand in a manifest.
        """
        values = {**record, "kind": "ensemble", "format": FORMAT, "id": "0" * 64}
        try:
            draft = cls.model_validate_json(json.dumps(values))  # as it will be read
        except ValidationError as error:
            raise SomaError(f"no model folder can hold this: {_sentence(error.errors()[0])}.") from None
        return draft.model_copy(update={"id": draft.content_hash()})

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read and check `ensemble.json` of a folder.

        Raises:
            SomaError: if it is missing, of another kind or format, altered, or allows what no model has.
        """
        path = directory / MANIFEST
        if not path.is_file():
            raise SomaError(
                f"{directory} has no {MANIFEST}, so it is not a model folder; name one that `soma export` wrote."
            )
        if path.stat().st_size > _MANIFEST_BYTES:
            raise SomaError(f"{path} is larger than the {_MANIFEST_BYTES:,} bytes that a manifest may have.")
        try:
            manifest = cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise _refused(path, error.errors(include_url=False)) from None
        if manifest.id != manifest.content_hash():
            raise SomaError(f"{path} was altered after it was written; export the run again.")
        return manifest

    def content_hash(self) -> str:
        """Compute the hash of everything but the id."""
        return sha256_json(self.model_dump(mode="json", exclude={"id"}))


def tensor_name(expert: int, tensor: str) -> str:
    """Return the name in WEIGHTS of a tensor of one expert."""
    return f"experts.{expert}.{tensor}"


def _refused(path: Path, errors: Iterable[Any]) -> SomaError:
    """Return the error for the most telling of a manifest's faults."""
    by_key = {str(error["loc"][0]) if error["loc"] else "": error for error in reversed(list(errors))}
    if "" in by_key and by_key[""]["type"] == "json_invalid":
        return SomaError(f"{path} is not readable JSON ({printable(by_key['']['msg'])}); copy it again.")
    if by_key.get("", {}).get("type") == "model_type" or "kind" in by_key:
        return SomaError(f"{path} does not describe an ensemble; name a folder that `soma export` wrote.")
    if "format" in by_key:
        return SomaError(
            f"{path} has another format than 2 and {FORMAT}, which this version reads; export the run again."
        )
    return SomaError(f"{path} describes no model: {_sentence(next(iter(by_key.values())))}; export the run again.")


def _sentence(error: Any) -> str:
    message = error["msg"].removeprefix("Value error, ")
    place = ".".join(str(word) for word in error["loc"])
    return printable(f"{place}: {message}" if place else message)


def printable(text: str) -> str:
    """Return text for a terminal: what a stranger wrote may contain control characters, and be long."""
    shown = "".join(c if c.isprintable() else "�" for c in text)
    return shown if len(shown) <= 300 else f"{shown[:300]} ..."
