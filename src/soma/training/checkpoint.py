"""Weights on disk: safetensors files that carry the hash of their own content. Pickle is never read.

A run's part publishes two files of weights. WEIGHTS is the one that others start from, serve or export: the last
iterate at the end of the budget, with the optimiser state if others continue the run. MILESTONES is read by evaluation
alone: earlier updates, and averages. Tensor names are `expert.update.iterate.tensor`, for example
`003.00000400.average.body`. `last` is the iterate itself, `average` the exponential average of the iterates; `memory`
marks the optimiser state. A run with a shared frozen head stores no head; it uses that of the run it starts from. Some
runs publish a third file, LEG: the resume state of an update shortly before the end, from which `soma replay`
reproduces WEIGHTS.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from soma.errors import SomaError
from soma.files.atomic import atomic_path
from soma.runs import ITERATES, Iterate, RunSpec, part_experts
from soma.training.names import MILESTONES, WEIGHTS

MEMORY = "memory"
"""Replaces the iterate in the names of the optimiser state, which a run publishes if others continue it."""


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON facts atomically, with a SHA-256 of both. The same content gives the same bytes."""
    plain = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    text = json.dumps(facts, sort_keys=True)
    # One metadata key only: safetensors writes several in no fixed order.
    record = json.dumps({"facts": text, "sha256": _content_hash(plain, text)}, sort_keys=True)
    with atomic_path(path) as temporary:
        try:
            save_file(plain, temporary, metadata={"soma": record})
        except SafetensorError as error:  # its text hides the system's error
            code = re.search(r"os error (\d+)", str(error))
            if code is None:
                raise
            raise OSError(int(code.group(1)), os.strerror(int(code.group(1))), str(path)) from None


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file that `save_tensors` wrote.

    Raises:
        SomaError: if the file is missing, truncated, altered or of another kind.
    """
    advice = "delete it and run the rule that makes it again"
    try:
        with safe_open(path, framework="pt") as f:
            metadata = f.metadata() or {}
            tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        raise SomaError(f"{path} is missing; run the rule that makes it.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise SomaError(f"{path} is not a whole safetensors file ({error}); {advice}.") from None
    if "soma" not in metadata:
        raise SomaError(f"{path} was not written by soma (its metadata lacks a content hash); {advice}.")
    record = json.loads(metadata["soma"])
    if _content_hash(tensors, record["facts"]) != record["sha256"]:
        raise SomaError(f"{path} does not have the content hash that it records; {advice}.")
    return tensors, json.loads(record["facts"])


def publish(
    folder: Path,
    run: RunSpec,
    part: str,
    kept: Mapping[str, Tensor],
    identity: str,
    files: Sequence[str] = (MILESTONES, WEIGHTS),
) -> None:
    """Write the files of a part; `kept` holds every tensor by name, `identity` identifies everything that made them."""
    for file in files:
        own = {name: tensor for name, tensor in kept.items() if _file(name, run) == file}
        save_tensors(folder / file, own, {"run": run.id, "part": part, "identity": identity})


@dataclass(frozen=True)
class Checkpoints:
    """Published weights of a run, checked part by part to belong to it."""

    run: RunSpec
    experts: range
    tensors: dict[str, Tensor]

    @classmethod
    def open(
        cls, run: RunSpec, parts: Mapping[str, Path], experts: range | None = None, *, milestones: bool = False
    ) -> Checkpoints:
        """Load the parts (name to folder): the final weights, and with `milestones` also earlier ones and averages.

        Args:
            experts: those that are needed, if not all.

        Raises:
            SomaError: on a damaged file, another run's file, or a missing or misshapen tensor.
        """
        tensors: dict[str, Tensor] = {}
        wanted = range(run.experts) if experts is None else experts
        for part, folder in parts.items():
            own = [e for e in part_experts(part) if e in wanted]
            for file in (WEIGHTS, MILESTONES)[: 1 + milestones] if own else ():
                tensors |= _checked(folder / file, run, part, own)
        return cls(run, wanted, tensors)

    def bodies(self, update: int, iterate: Iterate) -> Tensor:
        """Return the bodies [N, M]."""
        return torch.stack([self._get(e, update, iterate, "body") for e in self.experts])

    def heads(self, update: int, iterate: Iterate) -> Tensor:
        """Return the local heads [N, V, H]; a run with a shared frozen head has none."""
        return torch.stack([self._get(e, update, iterate, "head") for e in self.experts])

    def memory(self) -> dict[str, Tensor]:
        """Return the final optimiser state of a run that others continue, by name, each with an expert axis.

        Raises:
            SomaError: if the run did not publish it.
        """
        prefix = tensor_name(self.experts[0], self.run.updates, MEMORY, "")
        names = sorted(name.removeprefix(prefix) for name in self.tensors if name.startswith(prefix))
        if not names:
            raise SomaError(f"the checkpoints of {self.run.id} hold no optimiser state; run its training rule again.")
        return {n: torch.stack([self._get(e, self.run.updates, MEMORY, n) for e in self.experts]) for n in names}

    def _get(self, expert: int, update: int, iterate: str, tensor: str) -> Tensor:
        return self.tensors[tensor_name(expert, update, iterate, tensor)]


def tensor_name(expert: int, update: int, iterate: str, tensor: str) -> str:
    return f"{expert:03d}.{update:08d}.{iterate}.{tensor}"


def _file(name: str, run: RunSpec) -> str:
    """Return which of the two files contains a tensor."""
    _, update, iterate, _ = name.split(".", 3)
    return WEIGHTS if int(update) == run.updates and iterate in ("last", MEMORY) else MILESTONES


def _checked(path: Path, run: RunSpec, part: str, experts: Sequence[int]) -> dict[str, Tensor]:
    """Return the tensors of a file, after checking that it belongs to the run and has those of the experts."""
    loaded, facts = load_tensors(path)
    held = f"{facts.get('run')}/{facts.get('part')}"
    if held != f"{run.id}/{part}":
        raise SomaError(f"{path} holds {held}, not {run.id}/{part}; delete it and run its rule again.")
    shapes = {"body": (run.body_size,), "head": (256, run.settings.embedding)}
    kinds = ("body", "head")[: 1 + run.trains_head]
    for expert, update, iterate, tensor in itertools.product(experts, run.milestones, ITERATES, kinds):
        name = tensor_name(expert, update, iterate, tensor)
        if _file(name, run) != path.name:
            continue
        if name not in loaded:
            raise SomaError(f"{path} lacks the tensor {name}; delete it and run its rule again.")
        if tuple(loaded[name].shape) != shapes[tensor]:
            raise SomaError(
                f"{path}: {name} has shape {tuple(loaded[name].shape)} where the run's settings give {shapes[tensor]}; "
                "delete it and run its rule again."
            )
    return loaded


def _content_hash(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
