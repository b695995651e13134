"""Model folders: `weights.safetensors`, `features/` and `router/` as routing wrote them, `ensemble.json`, README.md.

`ensemble.json` describes the ensemble and its intended use, and holds the hash of every file except the model card,
which people may edit. It contains no code.

Shapes: N experts, M parameters of a body, V = 256 bytes, H embedding width.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from soma.errors import SomaError
from soma.files.atomic import atomic_directory, read_json, write_bytes, write_json
from soma.files.hashes import describe_files, sha256_file, sha256_json
from soma.inference.card import Card, card
from soma.models.experts import Experts
from soma.models.spec import VOCABULARY, LSTMSpec
from soma.routing.features import Features
from soma.routing.router import Router
from soma.runs import Iterate
from soma.training.checkpoint import load_tensors, save_tensors

FORMAT = 1
MANIFEST = "ensemble.json"
WEIGHTS = "weights.safetensors"
_ROUTING = {"features": ("features.json", "features.npz", "vocabulary.json"), "router": ("router.json", "router.npz")}
_WRITTEN = (MANIFEST, WEIGHTS, "README.md", *(f"{kind}/{name}" for kind, names in _ROUTING.items() for name in names))


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
    sources: Mapping[str, Any],
) -> dict[str, Any]:
    """Write a model's folder, whole or not at all.

    Args:
        run, iterate, update: origin of the weights.
        k: number of experts averaged by default.
        prefix, window: routed bytes, and bytes of a whole window.
        features, router: folders that routing wrote; both None if experts are not chosen by a router.
        facts: further facts for the model card.
        sources: files that the weights were read from, with hashes; recorded unchanged.

    Returns:
        The content of `ensemble.json`.

    Raises:
        SomaError: if weights are not finite, sizes do not match, or the router is damaged.
    """
    n, heads = len(experts), experts.distinct_heads
    if not 1 <= k <= n:
        raise SomaError(f"k = {k} experts cannot be averaged in an ensemble of {n}; choose k between 1 and {n}.")
    if not bool(torch.isfinite(experts.theta).all() and torch.isfinite(heads).all()):
        raise SomaError(
            f"the weights of {run} ({iterate}, update {update}) are not all finite; export another milestone."
        )
    routing = _routing(features, router, n)
    record = {
        "kind": "ensemble",
        "format": FORMAT,
        **asdict(experts.spec),
        "experts": n,
        "shared_head": experts.shares_head,
        "parameters": experts.parameters,
        "k": k,
        "prefix": prefix,
        "window": window,
        "run": run,
        "iterate": iterate,
        "update": update,
        "routed": bool(routing),
        "sources": dict(sources),
    }
    with atomic_directory(output, _WRITTEN) as directory:
        save_tensors(directory / WEIGHTS, {"bodies": experts.theta, "heads": heads}, {"run": run, "iterate": iterate})
        names = [WEIGHTS]
        for kind, source in routing.items():
            (directory / kind).mkdir()
            for name in _ROUTING[kind]:
                shutil.copyfile(source / name, directory / kind / name)
                names.append(f"{kind}/{name}")
        record["files"] = describe_files(directory, names)
        record["id"] = sha256_json(record)
        write_json(directory / MANIFEST, record)
        write_bytes(directory / "README.md", card(record, facts, output.name).encode())
    return record


def read(directory: Path) -> tuple[Experts, Router | None, dict[str, Any]]:
    """Read experts, router and manifest of a model's folder.

    Raises:
        SomaError: if the folder or a file is missing, or a file was altered.
    """
    about = _verified(directory)
    spec = LSTMSpec(about["width"], about["depth"], about["embedding"])
    tensors, _ = load_tensors(directory / WEIGHTS)
    bodies, heads = tensors["bodies"], tensors["heads"]
    shared = about["shared_head"] or about["experts"] == 1
    expected = ((about["experts"], spec.size), (1 if shared else about["experts"], VOCABULARY, spec.embedding))
    if (tuple(bodies.shape), tuple(heads.shape)) != expected:
        raise SomaError(f"{directory / WEIGHTS} has sizes that differ from {MANIFEST}; export the run again.")
    router = None
    if about["routed"]:
        router = Router.load(directory / "router", Features.load(directory / "features"))
        if router.n != about["experts"]:
            raise SomaError(
                f"{directory / 'router'} has {router.n} clusters for {about['experts']} experts; export the run again."
            )
    return Experts.of(spec, bodies, heads), router, about


def _verified(directory: Path) -> dict[str, Any]:
    """Check every file against `ensemble.json` and return its content."""
    if not directory.is_dir():
        raise SomaError(f"there is no folder {directory}; name one that `soma export` wrote.")
    path = directory / MANIFEST
    if not path.exists():
        raise SomaError(
            f"{directory} has no {MANIFEST}, so it is not a model folder; name one that `soma export` wrote."
        )
    about = read_json(path)
    if not isinstance(about, dict) or about.get("kind") != "ensemble":
        raise SomaError(f"{path} does not describe an ensemble; name a folder that `soma export` wrote.")
    if about.get("format") != FORMAT:
        raise SomaError(f"{path} has format {about.get('format')}, this version reads {FORMAT}; export the run again.")
    if about.get("id") != sha256_json({key: value for key, value in about.items() if key != "id"}):
        raise SomaError(f"{path} was altered after it was written; export the run again.")
    for name, known in about["files"].items():
        file = directory / name
        if not file.exists():
            raise SomaError(f"{file} is missing; copy the whole folder again, or export the run again.")
        if file.stat().st_size != known["bytes"] or sha256_file(file) != known["sha256"]:
            raise SomaError(f"{file} was altered or truncated (its hash differs from {MANIFEST}); copy it again.")
    return about


def _routing(features: Path | None, router: Path | None, experts: int) -> dict[str, Path]:
    """Return the folders to copy, after checking that they match each other and the number of experts."""
    if features is None or router is None:
        return {}
    loaded = Router.load(router, Features.load(features))
    if loaded.n != experts:
        raise SomaError(f"{router} has {loaded.n} clusters for {experts} experts; give the router that the run used.")
    return {"features": features, "router": router}
