"""Model folders: `weights.safetensors`, the router (`routing.safetensors`, `vocabulary.json`), `ensemble.json`, a card.

`ensemble.json` (`soma.inference.manifest`) describes the ensemble and its intended use, and holds the hash of every
file except README.md, the model card, which people may edit. No file contains code. A folder may come from a stranger:
whatever is in it, reading ends with an ensemble or one sentence, and opens only regular files of bounded size.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from soma.errors import SomaError
from soma.files.atomic import atomic_directory, write_bytes, write_json
from soma.files.hashes import describe_files, sha256_file
from soma.inference.card import Card, card
from soma.inference.manifest import (
    HEAD,
    MANIFEST,
    ROUTING,
    WEIGHTS,
    WORDS,
    Manifest,
    Shapes,
    printable,
    tensor_name,
)  # fmt: skip
from soma.inference.manifest import Routing as RoutingSizes
from soma.models import lstm
from soma.models.experts import Experts
from soma.routing.features import Features
from soma.routing.router import Router
from soma.runs import Iterate
from soma.training.checkpoint import save_tensors

_CARD = "README.md"
_FILES = (MANIFEST, WEIGHTS, ROUTING, WORDS, _CARD)
_VOCABULARY = TypeAdapter(list[Annotated[str, Field(min_length=1)]])


def export(
    experts: Experts,
    output: Path,
    *,
    run: str,
    iterate: Iterate,
    update: int,
    k: int,
    prefix: int,
    window: int,
    features: Path | None,
    router: Path | None,
    facts: Card,
    sources: Mapping[str, str | None],
) -> Manifest:
    """Write a model's folder, whole or not at all.

    Args:
        run, iterate, update: origin of the weights.
        k: number of experts averaged by default.
        prefix, window: routed bytes, and bytes of a whole window.
        features, router: folders that routing wrote; both None if experts are not chosen by a router.
        facts: further facts for the model card.
        sources: what weights and router were read from, with hashes; recorded unchanged.

    Returns:
        The content of `ensemble.json`.

    Raises:
        SomaError: if weights are not finite, sizes do not match, or the router is damaged.
    """
    n, heads = len(experts), experts.distinct_heads
    if not 1 <= k <= n:
        raise SomaError(f"k = {k} experts cannot be averaged in an ensemble of {n}; choose k between 1 and {n}.")
    if not _finite(experts.theta, heads):
        raise SomaError(
            f"the weights of {run} ({iterate}, update {update}) are not all finite; export another milestone."
        )
    routing = None if features is None or router is None else _matching(features, router, n)
    with atomic_directory(output, _FILES) as directory:
        save_tensors(directory / WEIGHTS, _named(experts), {"run": run, "iterate": iterate})
        names = [WEIGHTS]
        if routing is not None:
            save_tensors(directory / ROUTING, _routing_tensors(routing), {})
            write_json(directory / WORDS, routing.features.words)
            names += [ROUTING, WORDS]
        manifest = Manifest.seal(
            width=experts.spec.width,
            depth=experts.spec.depth,
            embedding=experts.spec.embedding,
            experts=n,
            shared_head=len(heads) == 1,
            parameters=experts.parameters,
            k=k,
            prefix=prefix,
            window=window,
            run=run,
            iterate=iterate,
            update=update,
            routing=None if routing is None else _sizes(routing),
            sources=dict(sources),
            files=describe_files(directory, names),
        )
        write_json(directory / MANIFEST, manifest.model_dump(mode="json"))
        write_bytes(directory / _CARD, card(manifest, facts, output.name).encode())
    return manifest


def read(directory: Path) -> tuple[Experts, Router | None, Manifest]:
    """Read experts, router and manifest of a model's folder.

    Raises:
        SomaError: if the folder or a file is missing, was altered, or is not what `export` writes.
    """
    if not directory.is_dir():
        raise SomaError(f"there is no folder {directory}; name one that `soma export` wrote.")
    try:
        manifest = Manifest.read(directory)
        _check_files(directory, manifest)
        shapes = manifest.tensors()
        weights = _tensors(directory / WEIGHTS, shapes[WEIGHTS])
        router = None if manifest.routing is None else _router(directory, manifest.routing, shapes[ROUTING], manifest)
    except OSError as error:
        raise SomaError(f"{error.filename or directory} cannot be read: {error.strerror}.") from None
    return _experts(manifest, weights), router, manifest


def _named(experts: Experts) -> dict[str, torch.Tensor]:
    """Return every matrix, gain and head by the name that it has in WEIGHTS."""
    heads = experts.distinct_heads.float()
    every = lstm.tensors(experts.spec, experts.theta.float()) | ({HEAD: heads} if len(heads) > 1 else {})
    named = {tensor_name(e, name): tensor for name, each in every.items() for e, tensor in enumerate(each)}
    return named | ({HEAD: heads[0]} if len(heads) == 1 else {})


def _experts(manifest: Manifest, weights: dict[str, torch.Tensor]) -> Experts:
    """Assemble the experts from the tensors of WEIGHTS."""
    spec, numbers = manifest.spec, range(manifest.experts)
    if manifest.format == 2:
        return Experts.of(spec, weights["bodies"], weights["heads"])
    theta = torch.stack(
        [torch.cat([weights[tensor_name(e, slot.name)].flatten() for slot in spec.layout]) for e in numbers]
    )
    names = [HEAD] if manifest.shared_head else [tensor_name(e, HEAD) for e in numbers]
    return Experts.of(spec, theta, torch.stack([weights[name] for name in names]))


def _check_files(directory: Path, manifest: Manifest) -> None:
    """Check that every file is a regular one with the size and hash in the manifest, the sizes of all first."""
    for name, known in manifest.files.items():
        file = directory / name
        if not file.is_file():
            raise SomaError(
                f"{file} is missing, or is no regular file; copy the whole folder, or export the run again."
            )
        if file.stat().st_size != known.bytes:
            raise SomaError(f"{file} was altered or truncated (its size differs from {MANIFEST}); copy it again.")
    size, memory = sum(known.bytes for known in manifest.files.values()), _memory()
    if size > memory:
        raise SomaError(
            f"{directory} needs {size:,} bytes of memory and this machine has {memory:,}; use a larger one."
        )
    for name, known in manifest.files.items():
        if sha256_file(directory / name) != known.sha256:
            raise SomaError(
                f"{directory / name} was altered or truncated (its hash differs from {MANIFEST}); copy it again."
            )


def _memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _tensors(path: Path, expected: Shapes) -> dict[str, torch.Tensor]:
    """Read a file of tensors, none of which is mapped before all have the expected name, dtype and shape."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            held = {name: (each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
            if held != expected:
                wrong = next((name for name in expected if held.get(name) != expected[name]), "another tensor")
                raise SomaError(
                    f"{path} does not hold the tensors that {MANIFEST} describes (see {wrong}); export the run again."
                )
            tensors = {name: file.get_tensor(name) for name in expected}
    except (SafetensorError, ValueError) as error:
        raise SomaError(f"{path} is not a whole safetensors file ({printable(str(error))}); copy it again.") from None
    if not _finite(*tensors.values()):
        raise SomaError(f"{path} holds values that are not numbers; export another milestone.")
    return tensors


def _finite(*tensors: torch.Tensor) -> bool:
    """Return True if all values are finite, in parts, so that the mask takes little memory."""
    return all(bool(torch.isfinite(part).all()) for t in tensors for part in t.detach().reshape(-1).split(1 << 22))


def _router(directory: Path, sizes: RoutingSizes, shapes: Shapes, manifest: Manifest) -> Router:
    tensors = {name: tensor.numpy() for name, tensor in _tensors(directory / ROUTING, shapes).items()}
    words = _words(directory / WORDS, sizes.words)
    features = Features(words, tensors["idf"], tensors["components"], tensors["mean"], manifest.id)
    return Router(features, tensors["centroids"], tensors["prices"], tensors["sizes"], sizes.assignment)


def _words(path: Path, count: int) -> tuple[str, ...]:
    """Read the vocabulary: different words that a terminal can show."""
    try:
        words = _VOCABULARY.validate_json(path.read_bytes(), strict=True)
    except ValidationError:
        raise SomaError(f"{path} is not a list of words; copy it again.") from None
    if len(words) != count or len(set(words)) != count:
        raise SomaError(f"{path} does not hold the {count} different words that {MANIFEST} says; copy it again.")
    hidden = next((word for word in words if not word.isprintable()), None)
    if hidden is not None:
        raise SomaError(f"{path} has a word with unprintable characters, {ascii(hidden)[:80]}; do not use this model.")
    return tuple(words)


def _matching(features: Path, router: Path, experts: int) -> Router:
    """Load a router, after checking that it matches its features and the number of experts."""
    loaded = Router.load(router, Features.load(features))
    if loaded.n != experts:
        raise SomaError(f"{router} has {loaded.n} clusters for {experts} experts; give the router that the run used.")
    return loaded


def _sizes(router: Router) -> dict[str, Any]:
    return {"words": len(router.features.words), "dims": router.features.dims, "assignment": router.assignment}


def _routing_tensors(router: Router) -> dict[str, torch.Tensor]:
    features = router.features
    arrays: dict[str, NDArray[Any]] = {
        "idf": features.idf_V,
        "components": features.components_DV,
        "mean": features.mean_D,
        "centroids": router.centroids_KD,
        "prices": router.prices_K,
        "sizes": router.sizes_K,
    }
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
